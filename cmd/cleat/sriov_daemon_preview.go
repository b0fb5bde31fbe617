package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/daemon"
)

// preview prints what a daemon would do (--dry-run). It fails on problems, since
// nothing would be offered then.
func (s *sriovDaemonServer) preview(ctx context.Context) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
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
	preview, err := daemon.DryRun(ctx, s.config)
	if err != nil {
		return err
	}
	if note != "" {
		preview.Notes = append(preview.Notes, note)
	}
	if err := cli.Print(s.Out, s.output, previewView(preview, s.config.Rules.Mode), preview); err != nil {
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

func previewView(p daemon.Preview, mode daemon.Mode) cli.View {
	name := strings.TrimSpace("the node state " + p.UID)
	lines := []string{fmt.Sprintf("%s, generation %d", name, p.Generation)}
	section := func(title string, items []string) {
		if len(items) > 0 {
			lines = append(lines, title+":")
		}
		for _, item := range items {
			lines = append(lines, "  "+cli.Plain(item))
		}
	}
	section("warnings", p.Warnings)
	section("problems", p.Problems)
	var steps, held []string
	for i, step := range p.Steps {
		steps = append(steps, fmt.Sprintf("%d. %s", i+1, step))
	}
	for _, h := range p.Held {
		held = append(held, fmt.Sprintf("%s of %s: pod %s/%s, container %s", h.ID, h.Resource, h.Namespace, h.Pod, h.Container))
	}
	switch {
	case len(p.Steps) == 0 && len(p.Problems) == 0:
		lines = append(lines, "nothing is left to do: devices would be offered")
	case mode == daemon.Follow:
		section("left to the operator", steps)
	default:
		section("steps", steps)
	}
	if p.More {
		lines = append(lines, "  more may follow from what they come to")
	}
	section("functions that this disturbs", p.Touches)
	section("of these, pods hold", held)
	if p.Unknown != "" && len(p.Touches) > 0 {
		section("it is not known which of these pods hold", []string{p.Unknown})
	}
	section("notes", p.Notes)
	section("not done by this daemon", p.NotDone)
	return cli.Text(strings.Join(lines, "\n"))
}
