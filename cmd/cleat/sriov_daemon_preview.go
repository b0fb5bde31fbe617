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

// preview prints the plan (--dry-run). It fails on problems, since no device
// would be offered then.
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
		return fmt.Errorf("%s that no step resolves: no device would be offered", count(n, "problem"))
	}
	return nil
}

// openReadOnly opens the daemon's record, if it exists, or returns a note why
// it is ignored.
func (s *sriovDaemonServer) openReadOnly(ctx context.Context) (note string, err error) {
	path := filepath.Join(s.StateDir, sriovDaemonRecord)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	bound, cancel := context.WithTimeout(ctx, 2*time.Second) // a running daemon has locked it
	defer cancel()
	record, err := store.Open(bound, path, store.Options{Role: daemon.Role, Version: daemon.Version, ReadOnly: true})
	switch {
	case errors.Is(err, store.ErrHeld):
		return "the record is locked by a running daemon: PFs removed from the node state are left out", nil
	case err != nil:
		return "", err
	}
	s.config.Store = record
	s.OnClose(func(context.Context) error { return record.Close() })
	return "", nil
}

func previewView(p daemon.Preview, mode daemon.Mode) cli.View {
	name := strings.TrimSpace("node state " + p.UID)
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
		lines = append(lines, "no steps: devices would be offered")
	case mode == daemon.Follow:
		section("left to the operator", steps)
	default:
		section("steps", steps)
	}
	if p.More {
		lines = append(lines, "  more steps can follow from their results")
	}
	section("functions disrupted by the steps", p.Touches)
	section("in use by pods", held)
	if p.Unknown != "" && len(p.Touches) > 0 {
		section("functions in use by pods are unknown", []string{p.Unknown})
	}
	section("notes", p.Notes)
	section("not configured by this daemon", p.NotDone)
	return cli.Text(strings.Join(lines, "\n"))
}
