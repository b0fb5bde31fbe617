package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/cleatproject/cleat/test/upstream/bench/host"
)

// kinds are the hosts, each a program in this directory.
var kinds = [...]string{"kubelet", "cleat"}

// build makes the programs of both.
func build(ctx context.Context, dir string) error {
	for _, kind := range kinds {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, kind), "./bench/"+kind)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build ./bench/%s: %w\n%s", kind, err, out)
		}
	}
	return nil
}

// process is a host.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Reader
	log     bytes.Buffer
}

func launch(program, dir string) (*process, error) {
	p := &process{cmd: exec.Command(program, dir)}
	p.cmd.Stderr = &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.answers = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// ask sends a word and returns the response.
func (p *process) ask(word string) (a host.Answer, err error) {
	if _, err := fmt.Fprintln(p.in, word); err != nil {
		return a, fmt.Errorf("%s: %w: %s", word, err, p.log.String())
	}
	line, err := p.answers.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("%s: %w: %s", word, err, p.log.String())
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("%s: %w: %s", word, err, line)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

func (p *process) end() error {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, p.log.String())
	}
	return nil
}

// resident returns the peak resident memory in bytes.
func (p *process) resident() (int64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "status"))
	if err != nil {
		return 0, err
	}
	_, after, found := bytes.Cut(text, []byte("VmHWM:"))
	fields := bytes.Fields(after)
	if !found || len(fields) == 0 {
		return 0, errors.New("the kernel does not report VmHWM")
	}
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	return kib << 10, err
}
