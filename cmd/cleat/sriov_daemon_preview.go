package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/daemon"
)

// sriovPreviewBound is how long --dry-run may take.
const sriovPreviewBound = time.Minute

// preview prints what the daemon would do. Problems are an error, as nothing would
// be offered.
func (s *sriovDaemonServer) preview(ctx context.Context) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, sriovPreviewBound)
	defer cancel()
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	if s.config.Logger, err = server.NewLogger(s.Logs, "text", "error"); err != nil {
		return err
	}
	if err := s.openMachine(s.config.Logger); err != nil {
		return err
	}
	note, err := s.openReadOnly(ctx)
	if err != nil {
		return err
	}
	preview, err := daemon.Look(ctx, s.config)
	if err != nil {
		return err
	}
	if note != "" {
		preview.Notes = append(preview.Notes, note)
	}
	if err := s.printPreview(preview); err != nil {
		return err
	}
	if n := len(preview.Problems); n > 0 {
		return fmt.Errorf("%s that no step solves: nothing would be offered", count(n, "problem"))
	}
	return nil
}

// openReadOnly opens the record of the daemon here, if there is one, or says why
// it is left out.
func (s *sriovDaemonServer) openReadOnly(ctx context.Context) (note string, err error) {
	path := filepath.Join(s.StateDir, sriovDaemonRecord)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	bound, cancel := context.WithTimeout(ctx, 2*time.Second) // a running daemon holds it
	defer cancel()
	record, err := store.Open(bound, path, store.Options{Role: daemon.Role, Version: daemon.Version, ReadOnly: true})
	switch {
	case errors.Is(err, store.ErrHeld):
		return "a daemon runs and has its record: PFs that the node state does not name any more are left out", nil
	case err != nil:
		return "", err
	}
	s.config.Store = record
	s.OnClose(func(context.Context) error { return record.Close() })
	return "", nil
}

func (s *sriovDaemonServer) printPreview(p daemon.Preview) error {
	if s.output != cli.FormatTable {
		return cli.Print(s.Out, s.output, cli.Table{}, p)
	}
	var b strings.Builder
	name := "the node state"
	if p.UID != "" {
		name += " " + cli.Plain(p.UID)
	}
	fmt.Fprintf(&b, "%s, generation %d\n", name, p.Generation)
	section(&b, "warnings", p.Warnings)
	section(&b, "problems", p.Problems)
	switch {
	case len(p.Steps) == 0 && len(p.Problems) == 0:
		b.WriteString("nothing is left to do: devices would be offered\n")
	case s.config.Rules.Mode == daemon.Follow:
		section(&b, "left to the operator", numbered(p.Steps))
	default:
		section(&b, "steps", numbered(p.Steps))
	}
	if p.More {
		b.WriteString("  more may follow from what they come to\n")
	}
	section(&b, "functions that this disturbs", p.Touches)
	var held []string
	for _, h := range p.Held {
		held = append(held, fmt.Sprintf("%s of %s: pod %s/%s, container %s", h.ID, h.Resource, h.Namespace, h.Pod, h.Container))
	}
	section(&b, "of these, pods hold", held)
	if p.Unknown != "" && len(p.Touches) > 0 {
		section(&b, "it is not known which of these pods hold", []string{p.Unknown})
	}
	section(&b, "notes", p.Notes)
	section(&b, "not done by this daemon", p.NotDone)
	_, err := io.WriteString(s.Out, b.String())
	return err
}

func section(b *strings.Builder, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "%s:\n", title)
	for _, line := range lines {
		fmt.Fprintf(b, "  %s\n", cli.Plain(line))
	}
}

func numbered(lines []string) []string {
	var all []string
	for i, line := range lines {
		all = append(all, strconv.Itoa(i+1)+". "+line)
	}
	return all
}
