package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
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

// previewSriov prints what a daemon would do. Problems are an error, as nothing
// would be offered.
func previewSriov(ctx context.Context, f sriovDaemonFlags, out, logs io.Writer) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, sriovPreviewBound)
	defer cancel()
	logger, err := server.NewLogger(logs, "text", "error")
	if err != nil {
		return err
	}
	c := daemon.Config{Rules: f.rules(), PluginConfig: f.pluginConfig, GUIDFile: f.guidFile, Logger: logger}
	if c.Source, _, err = f.source(logger); err != nil {
		return err
	}
	remembered, note, err := f.remembered(ctx)
	if err != nil {
		return err
	}
	if remembered != nil {
		c.Store = remembered
		defer func() { err = errors.Join(err, remembered.Close()) }()
	}
	pods, machine := f.look(&c)
	if pods != nil {
		defer func() { err = errors.Join(err, pods.Close()) }()
	}
	defer func() { err = errors.Join(err, machine.Close(ctx)) }()
	preview, err := daemon.Look(ctx, c)
	if err != nil {
		return err
	}
	if note != "" {
		preview.Notes = append(preview.Notes, note)
	}
	if err := printSriovPreview(out, f, preview); err != nil {
		return err
	}
	if n := len(preview.Problems); n > 0 {
		return fmt.Errorf("%s that no step solves: nothing would be offered", count(n, "problem"))
	}
	return nil
}

// remembered opens the record of the daemon here, if there is one; or says why
// it is left out.
func (f *sriovDaemonFlags) remembered(ctx context.Context) (*store.Store, string, error) {
	if _, err := os.Stat(f.record()); errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	// A daemon that runs has it for itself.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := store.Open(ctx, f.record(), store.Options{Role: daemon.Role, Version: daemon.Version, ReadOnly: true})
	if errors.Is(err, store.ErrHeld) {
		return nil, "a daemon runs and has its record: PFs that the node state does not name any more are left out", nil
	}
	return s, "", err
}

func printSriovPreview(out io.Writer, f sriovDaemonFlags, p daemon.Preview) error {
	if f.output != cli.FormatTable {
		return cli.Print(out, f.output, cli.Table{}, p)
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
	case f.parsed == daemon.Follow:
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
	_, err := io.WriteString(out, b.String())
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
