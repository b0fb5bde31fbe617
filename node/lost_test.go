package node_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/file"
	"github.com/cleatproject/cleat/test/testkit"
)

// losing is an attacher whose devices end like those of an evicted client: they
// never work again, and the next one does.
type losing struct {
	node.Attacher
	isLost, fails atomic.Bool
	secrets       atomic.Value
}

func (a *losing) Inspect(ctx context.Context, t node.Target) (node.Info, error) {
	info, err := a.Attacher.Inspect(ctx, t)
	if a.isLost.Load() && !info.Device.IsZero() {
		info.Presence, info.Problem = node.Lost, errors.New("the client was evicted")
	}
	return info, err
}

func (a *losing) Attach(ctx context.Context, t node.Target, use node.Use) (*node.Attachment, error) {
	if a.fails.Load() {
		return nil, errs.Errorf(errs.Unavailable, "the storage does not answer")
	}
	a.secrets.Store(t.Secrets["key"])
	return a.Attacher.Attach(ctx, t, use)
}

func (a *losing) Detach(ctx context.Context, t node.Target) error {
	err := a.Attacher.Detach(ctx, t)
	if err == nil {
		a.isLost.Store(false)
	}
	return err
}

// Repeats replace a stage whose device is lost when nothing uses it, also if the
// storage does not answer at first, and after a restart.
func TestLostDevice(t *testing.T) {
	a := &losing{}
	n := newNode(t, func(n *testNode) {
		a.Attacher = file.New(n.pool)
		n.config.Attachers = map[string]node.Attacher{file.Protocol(): a}
	})
	s := n.staging("vol-lost", mkfs.Ext4)
	s.Secrets = map[string]string{"key": "k"}
	p, other := n.publishOf(s, "target"), n.publishOf(s, "other")
	n.up(s, p)
	a.isLost.Store(true)
	for _, err := range []error{n.Stage(t.Context(), s), n.Publish(t.Context(), p), n.Publish(t.Context(), other)} {
		n.refused(err, errs.Precondition, "the client was evicted", "published at "+p.Target)
	}
	n.unpublish(p)

	// Processes with mounts of their own, as in a container.
	opened := filepath.Join(s.Staging, "opened")
	n.write(opened, "")
	for _, c := range []struct{ dir, stdin, use string }{{s.Staging, "/dev/null", "working directory is /"}, {"/", opened, "open file is /"}} {
		stdin := testkit.Value(os.Open(c.stdin))(t)
		process := testkit.Start(t, &exec.Cmd{
			Path: "/bin/sleep", Args: []string{"sleep", "600"}, Dir: c.dir, Stdin: stdin,
			SysProcAttr: &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS},
		})
		testkit.Must(t, stdin.Close())
		for _, err := range []error{n.Stage(t.Context(), s), n.Publish(t.Context(), p)} {
			n.refused(err, errs.Precondition, "the client was evicted", "is used by process", c.use)
		}
		process.Kill()
	}

	a.fails.Store(true)
	n.refused(n.Publish(t.Context(), p), errs.Unavailable, "the storage does not answer")
	n.restart()
	n.refused(n.Publish(t.Context(), p), errs.Unavailable, "the storage does not answer")
	a.fails.Store(false)
	n.publish(p)
	n.write(filepath.Join(p.Target, "a"), "written")
	n.unpublish(p)

	a.isLost.Store(true)
	n.stage(s)
	a.isLost.Store(true)
	n.publish(other)
	if got := a.secrets.Load(); got != "k" {
		t.Errorf("staged again with the key %q, want that of the stage", got)
	}
	n.reads(filepath.Join(other.Target, "a"), "written")
	n.down(s, other)
}
