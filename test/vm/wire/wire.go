// Package wire is the protocol between a test on the host and the agent in its
// guest. The agent dials out: it keeps spare connections to the host, each
// opened with a Hello. The host takes one for each request:
//
//	agent  Hello, one line of JSON
//	host   Request, one line of JSON
//	exec   frames both ways (see Frame) until an Exit or a Fault
//	dial   Reply, one line of JSON, then the bytes of the dialled connection
//	push   the file's bytes from the host, then a Reply
//	pull   Reply with the file's size, then the file's bytes
//	halt   Reply, then the guest goes down
//
// Whoever closes the connection ends the request; a process does not outlive
// the connection that started it.
package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// Version names this protocol; both sides of one guest speak the same.
const Version = 1

// MaxLine bounds a line of JSON in bytes.
const MaxLine = 1 << 20

// Hello is the first line of a connection, from the agent.
type Hello struct {
	Version int    `json:"version"`
	Token   string `json:"token"`
	// Fault is set when the guest could not set itself up: it serves nothing.
	Fault string `json:"fault,omitempty"`
}

// Check holds a hello to this side's version and token.
func (h Hello) Check(token string) error {
	switch {
	case h.Version != Version:
		return fmt.Errorf("the guest's agent speaks version %d of the protocol, this test speaks %d: both must be built from one tree", h.Version, Version)
	case h.Token != token:
		return errors.New("the caller does not know this guest's token")
	case h.Fault != "":
		return fmt.Errorf("the guest could not set itself up: %s", h.Fault)
	}
	return nil
}

// Op is what a request asks for.
type Op string

// The requests.
const (
	OpExec Op = "exec"
	OpDial Op = "dial"
	OpPush Op = "push"
	OpPull Op = "pull"
	OpHalt Op = "halt"
)

// Request is what the host asks. Exactly the part that Op names is set; halt
// has none.
type Request struct {
	Op   Op    `json:"op"`
	Exec *Exec `json:"exec,omitempty"`
	Dial *Dial `json:"dial,omitempty"`
	Push *Push `json:"push,omitempty"`
	Pull *Pull `json:"pull,omitempty"`
}

// Exec starts a process in a process group of its own.
type Exec struct {
	Argv []string `json:"argv"`          // Argv[0] without a slash is looked up on the PATH
	Env  []string `json:"env,omitempty"` // NAME=value, added to the agent's own
	Dir  string   `json:"dir,omitempty"` // absolute; empty is /
}

// Dial connects to a socket in the guest.
type Dial struct {
	Network string `json:"network"` // unix or tcp
	Address string `json:"address"`
}

// Push writes a file: directories are made, and the file appears whole.
type Push struct {
	Path string `json:"path"` // absolute
	Mode uint32 `json:"mode"` // permission bits
	Size int64  `json:"size"` // bytes that follow
}

// Pull reads a file.
type Pull struct {
	Path string `json:"path"` // absolute
}

// Reply answers dial, push, pull and halt.
type Reply struct {
	Error string `json:"error,omitempty"`
	Size  int64  `json:"size,omitempty"` // of pull: bytes that follow
}

// Err is the error that the agent reports.
func (r Reply) Err() error {
	if r.Error == "" {
		return nil
	}
	return errors.New(r.Error)
}

// Check says what is wrong with a request.
func (r Request) Check() error {
	parts := 0
	for _, set := range []bool{r.Exec != nil, r.Dial != nil, r.Push != nil, r.Pull != nil} {
		if set {
			parts++
		}
	}
	part := map[Op]bool{OpExec: r.Exec != nil, OpDial: r.Dial != nil, OpPush: r.Push != nil, OpPull: r.Pull != nil, OpHalt: parts == 0}
	want := 1
	if r.Op == OpHalt {
		want = 0
	}
	fits, known := part[r.Op]
	switch {
	case !known:
		return fmt.Errorf("operation %q is not one of exec, dial, push, pull, halt", r.Op)
	case !fits || parts != want:
		return fmt.Errorf("a request to %s has %d parts; it has its own and no other", r.Op, parts)
	case r.Exec != nil:
		return r.Exec.check()
	case r.Dial != nil:
		return r.Dial.check()
	case r.Push != nil:
		return r.Push.check()
	case r.Pull != nil:
		return checkPath(r.Pull.Path)
	}
	return nil
}

func (e Exec) check() error {
	if len(e.Argv) == 0 || e.Argv[0] == "" {
		return errors.New("exec names no program")
	}
	for _, s := range append(e.Argv[:len(e.Argv):len(e.Argv)], e.Env...) {
		if strings.ContainsRune(s, 0) {
			return fmt.Errorf("%q contains a NUL, which no argument or variable can", s)
		}
	}
	for _, s := range e.Env {
		if name, _, found := strings.Cut(s, "="); !found || name == "" {
			return fmt.Errorf("%q is no NAME=value", s)
		}
	}
	if e.Dir == "" {
		return nil
	}
	return checkPath(e.Dir)
}

func (d Dial) check() error {
	if d.Network != "unix" && d.Network != "tcp" {
		return fmt.Errorf("network %q is neither unix nor tcp", d.Network)
	}
	if d.Address == "" {
		return errors.New("dial names no address")
	}
	return nil
}

func (p Push) check() error {
	if p.Mode&^0o777 != 0 {
		return fmt.Errorf("mode %#o has more than permission bits", p.Mode)
	}
	if p.Size < 0 {
		return fmt.Errorf("a file of %d bytes", p.Size)
	}
	return checkPath(p.Path)
}

func checkPath(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) {
		return fmt.Errorf("path %q is not absolute and clean", p)
	}
	return nil
}

// Write sends one line of JSON.
func Write(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(line) >= MaxLine {
		return fmt.Errorf("a line of %d bytes; %d is the most", len(line), MaxLine)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// Read takes one line of JSON, which knows no field that v lacks.
func Read(r *bufio.Reader, v any) error {
	line, err := readLine(r)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("a line that is not what it should be: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("a line with more than one value")
	}
	return nil
}

// ReadRequest takes one request and checks it.
func ReadRequest(r *bufio.Reader) (Request, error) {
	var q Request
	if err := Read(r, &q); err != nil {
		return Request{}, err
	}
	return q, q.Check()
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > MaxLine:
			return nil, fmt.Errorf("a line of more than %d bytes", MaxLine)
		case err == nil:
			return line, nil
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
