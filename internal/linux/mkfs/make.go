package mkfs

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// Request describes the file system to create.
type Request struct {
	// Path is the absolute path of a regular file or a block device that reads
	// as zeros. Nothing is discarded.
	Path string
	Type Type
	// Label has at most 16 bytes for ext4, 12 for xfs, 255 for btrfs.
	Label string
	// UUID is random if empty.
	UUID string
}

// Make is Tools.Make with the installed tools.
func Make(ctx context.Context, r Request) error { return Tools{}.Make(ctx, r) }

// Make creates a file system with 4096-byte sectors and blocks. It does not
// flush the file. After an error the file must be discarded.
//
// Errors: ErrNoTool; ErrNotBlank; errs.OutOfRange for a size below MinSize;
// errs.Exhausted if the pool has no space left; errs.Invalid.
func (t Tools) Make(ctx context.Context, r Request) error {
	if err := r.check(); err != nil {
		return err
	}
	f, err := os.OpenFile(r.Path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("make %s: %w", r.Type, err)
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("size of %s: %w", r.Path, err)
	}
	if least := MinSize(r.Type); size < least {
		return errs.Errorf(errs.OutOfRange, "%s has %d bytes; %s needs at least %d (%d MiB)", r.Path, size, r.Type, least, least/mib)
	}
	if err := checkBlank(ctx, f, size); err != nil {
		return err
	}
	commands := map[Type]func(context.Context, Request) (command, error){XFS: t.xfs, Btrfs: t.btrfs, Ext4: func(ctx context.Context, r Request) (command, error) {
		return t.ext4(ctx, r, size)
	}}
	cmd, err := commands[r.Type](ctx, r)
	if err != nil {
		return err
	}
	res, err := t.runWithRetry(ctx, cmd)
	if err != nil {
		return fmt.Errorf("make %s on %s: %w", r.Type, r.Path, err)
	}
	if res.code != 0 {
		return mkfsError(r, cmd.tool, res)
	}
	return r.verify(f)
}

// mountCheckFailed is the error of mkfs.btrfs if another process detached a
// loop device that it found in the mount table before it checked the device's
// backing file. It has written nothing then.
const mountCheckFailed = "cannot check mount status"

// runWithRetry repeats a tool for up to a second after this error; a longer one
// has another cause.
func (t Tools) runWithRetry(ctx context.Context, cmd command) (res result, err error) {
	err = retry.For(ctx, time.Second, func() (again bool, err error) {
		res, err = t.run(ctx, cmd)
		return err == nil && res.code != 0 && strings.Contains(res.output, mountCheckFailed), err
	})
	return res, err
}

func (r Request) check() error {
	if _, err := ParseType(string(r.Type)); err != nil {
		return err
	}
	if !filepath.IsAbs(r.Path) || strings.ContainsRune(r.Path, 0) {
		return errs.Errorf(errs.Invalid, "path %q is not absolute", r.Path)
	}
	if n := maxLabel(r.Type); len(r.Label) > n {
		return errs.Errorf(errs.Invalid, "label %q has %d bytes; %s takes at most %d", r.Label, len(r.Label), r.Type, n)
	}
	if strings.ContainsAny(r.Label, "\x00\n") {
		return errs.Errorf(errs.Invalid, "label %q contains a NUL or newline character", r.Label)
	}
	if r.UUID != "" {
		if id, err := uuid.Parse(r.UUID); err != nil || id == uuid.Nil || id.String() != r.UUID {
			return errs.Errorf(errs.Invalid, "%q is not a UUID in lower case", r.UUID)
		}
	}
	return nil
}

func mkfsError(r Request, tool string, res result) error {
	kind := errs.Internal
	if strings.Contains(res.output, unix.ENOSPC.Error()) || strings.Contains(res.output, "No space left on device") {
		kind = errs.Exhausted
	}
	return errs.Errorf(kind, "%s on %s failed with exit code %d%s", tool, r.Path, res.code, quoteOutput(res.output))
}

// verify notices a tool that wrongly reports success before the volume is
// mounted.
func (r Request) verify(f *os.File) error {
	info, err := Probe(f)
	if err != nil {
		return fmt.Errorf("read the new %s on %s: %w", r.Type, r.Path, err)
	}
	if info.Type != r.Type || (r.UUID != "" && info.UUID != r.UUID) {
		return fmt.Errorf("made %s on %s, but it now contains %s", r.Type, r.Path, describe(f, 0))
	}
	return nil
}
