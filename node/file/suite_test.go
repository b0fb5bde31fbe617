package file_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/file"
	"github.com/cleatproject/cleat/node/nodetest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// faultVariable selects the attacher's fault in TestConformance.
const faultVariable = "CLEAT_NODETEST_FAULT"

func TestConformance(t *testing.T) { nodetest.Run(t, rig) }

func rig(t *testing.T) nodetest.Rig {
	p := newPool(t)
	create := func(id volume.ID, size int64) access.Access {
		v := p.volume(string(id))
		p.grow(string(id), size)
		return v.Locator
	}
	return nodetest.Rig{
		New: func() node.Attacher {
			if fault := os.Getenv(faultVariable); fault != "" {
				return faulty{file.New(p.dir), p, fault}
			}
			return file.New(p.dir)
		},
		Create:   create,
		Delete:   func(id volume.ID) { testkit.Must(t, os.Remove(p.path(string(id)))) },
		Grow:     func(id volume.ID, size int64) { p.grow(string(id), size) },
		Truncate: func(id volume.ID) { testkit.Must(t, os.Truncate(p.path(string(id)), size)) },
		CreateForeign: func(id volume.ID) access.Access {
			testkit.Must(t, os.Mkdir(p.path(string(id)), 0o700))
			return access.File{Pool: uuid, Name: "volumes/" + string(id)}
		},
		Disconnect: func() (reconnect func()) {
			testkit.Must(t, os.Rename(p.dir, p.dir+".away"))
			return func() { testkit.Must(t, os.Rename(p.dir+".away", p.dir)) }
		},
		Claim: func(id volume.ID) (release func(), err error) {
			f := testkit.Value(os.Open(p.path(string(id))))(t)
			return func() { testkit.Must(t, flock.Unlock(f), f.Close()) }, flock.Try(f)
		},
	}
}

// Each attacher below has one fault, which must fail its part of the suite, in
// a process of its own.
func TestSuiteFindsFaults(t *testing.T) {
	for fault, parts := range map[string]string{
		"second device":        "Attach|AttachConcurrently",
		"always writable":      "Use",
		"never read-only":      "SetReadOnly|BlockVolume",
		"forgets the backing":  "Deleted|Replaced|Unreachable|DeletedWhilePublished",
		"trusts the number":    "ReusedNumber",
		"detached though busy": "Busy",
		"keeps the size":       "Resize",
		"no lock":              "Lock",
		"forgets the deleted":  "Held|Orphans",
		"lists all":            "Held",
		"all is present":       "Presence",
		"device is missing":    "MountUse|FilesystemVolume",
	} {
		t.Run(fault, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), testkit.Value(os.Executable())(t), "-test.run=^TestConformance$/^("+parts+")$")
			// Without GORACE the race detector waits a second at each end.
			cmd.Env = append(os.Environ(), faultVariable+"="+fault, "GORACE=atexit_sleep_ms=0")
			out, _ := cmd.CombinedOutput()
			for part := range strings.SplitSeq(parts, "|") {
				if !strings.Contains(string(out), "--- FAIL: TestConformance/"+part+" ") {
					t.Errorf("part %s did not notice:\n%s", part, out)
				}
			}
		})
	}
}

type faulty struct {
	*file.Attacher
	pool
	fault string
}

func (f faulty) Attach(ctx context.Context, t node.Target, use node.Use) (*node.Attachment, error) {
	switch f.fault {
	case "second device":
		backing := testkit.Value(os.OpenFile(filepath.Join(f.dir, t.Locator.(access.File).Name), os.O_RDWR, 0))(f.t)
		defer backing.Close()
		d, device, err := loop.Attach(ctx, loop.Config{File: backing})
		info, _ := f.Attacher.Inspect(ctx, t)
		return &node.Attachment{Device: node.Device{Path: d.Path, Major: d.Major, Minor: d.Minor, Backing: info.Backing}, Size: size, File: device}, err
	case "always writable":
		use.ReadOnly = false
	}
	return f.Attacher.Attach(ctx, t, use)
}

func (f faulty) Inspect(ctx context.Context, t node.Target) (node.Info, error) {
	if f.fault == "forgets the backing" {
		t.Device = node.Device{}
	}
	info, err := f.Attacher.Inspect(ctx, t)
	switch f.fault {
	case "all is present":
		info.Presence = node.Present
	case "device is missing":
		info.Device = node.Device{}
	}
	return info, err
}

func (f faulty) Detach(ctx context.Context, t node.Target) error {
	switch f.fault {
	case "forgets the backing":
		t.Device = node.Device{}
	case "trusts the number":
		for _, d := range testkit.Value(loop.List(ctx))(f.t) {
			// Once it is detached, another test can have the number.
			if name, _, err := loop.BackingName(d); d.Path == t.Device.Path && err == nil && strings.HasPrefix(name, f.dir+"/") {
				return loop.Detach(ctx, d)
			}
		}
	}
	err := f.Attacher.Detach(ctx, t)
	if f.fault == "detached though busy" && errors.Is(err, errs.Precondition) {
		return nil
	}
	return err
}

func (f faulty) Resize(ctx context.Context, t node.Target) (int64, error) {
	if info, err := f.Attacher.Inspect(ctx, t); f.fault == "keeps the size" && err == nil && !info.Device.IsZero() {
		return info.Size, nil
	}
	return f.Attacher.Resize(ctx, t)
}

func (f faulty) SetReadOnly(ctx context.Context, t node.Target, readOnly bool) error {
	return f.Attacher.SetReadOnly(ctx, t, readOnly && f.fault != "never read-only")
}

func (f faulty) Lock(ctx context.Context, t node.Target) (unlock func(), err error) {
	if f.fault == "no lock" {
		return func() {}, nil
	}
	return f.Attacher.Lock(ctx, t)
}

func (f faulty) Held(ctx context.Context) ([]node.Held, error) {
	held, err := f.Attacher.Held(ctx)
	switch f.fault {
	case "forgets the deleted":
		held = slices.DeleteFunc(held, func(h node.Held) bool { return h.Locator == nil })
	case "lists all":
		for _, d := range testkit.Value(loop.List(ctx))(f.t) {
			if name, _, err := loop.BackingName(d); err == nil && strings.HasPrefix(name, os.TempDir()) {
				held = append(held, node.Held{Device: node.Device{Path: d.Path}})
			}
		}
	}
	return held, err
}
