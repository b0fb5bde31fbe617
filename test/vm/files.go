package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cleatproject/cleat/test/vm/wire"
)

// Push copies a host file into the guest atomically and creates its parent
// directories.
func (g *Guest) Push(ctx context.Context, hostPath, guestPath string, mode os.FileMode) error {
	f, err := os.Open(hostPath)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return g.push(ctx, f, info.Size(), guestPath, mode)
}

// WriteFile writes data to a guest file like Push.
func (g *Guest) WriteFile(ctx context.Context, guestPath string, data []byte, mode os.FileMode) error {
	return g.push(ctx, bytes.NewReader(data), int64(len(data)), guestPath, mode)
}

func (g *Guest) push(ctx context.Context, from io.Reader, size int64, guestPath string, mode os.FileMode) error {
	l, done, err := g.ask(ctx, wire.Request{Op: wire.OpPush, Push: &wire.Push{Path: guestPath, Mode: uint32(mode.Perm()), Size: size}})
	if err == nil {
		defer done()
		defer l.Close()
		_, sent := io.CopyN(l, from, size)
		if _, err = g.answer(ctx, l); err != nil { // the agent's error is more precise than the write's
			err = errors.Join(err, sent)
		}
	}
	if err != nil {
		return fmt.Errorf("push %s to guest %s: %w", guestPath, g.spec.Name, err)
	}
	return nil
}

// Pull copies a regular file of the guest to the host. Files of proc and sysfs
// report no size: use Run with cat for them.
func (g *Guest) Pull(ctx context.Context, guestPath, hostPath string) (err error) {
	f, err := os.Create(hostPath)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return g.pull(ctx, guestPath, f)
}

// ReadFile returns the contents of a guest file; see Pull.
func (g *Guest) ReadFile(ctx context.Context, guestPath string) ([]byte, error) {
	var b bytes.Buffer
	err := g.pull(ctx, guestPath, &b)
	return b.Bytes(), err
}

func (g *Guest) pull(ctx context.Context, guestPath string, to io.Writer) error {
	l, done, err := g.ask(ctx, wire.Request{Op: wire.OpPull, Pull: &wire.Pull{Path: guestPath}})
	if err == nil {
		defer done()
		defer l.Close()
		var reply wire.Reply
		if reply, err = g.answer(ctx, l); err == nil {
			if _, err = io.CopyN(to, l, reply.Size); err != nil {
				err = g.connectionError(ctx, err)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("pull %s from guest %s: %w", guestPath, g.spec.Name, err)
	}
	return nil
}
