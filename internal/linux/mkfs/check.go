package mkfs

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cleatproject/cleat/errs"
)

// checkBound is how long a call waits for e2fsck. The check continues after it.
const checkBound = time.Minute

// NeedsCheck reports whether the kernel has found errors in an ext4.
func NeedsCheck(r io.ReaderAt) (bool, error) {
	head := make([]byte, reach)
	if n, err := r.ReadAt(head, 0); n < len(head) {
		return false, fmt.Errorf("read the superblock: %w", err)
	}
	s, found, err := readExt(head)
	return found && s.needsCheck(), err
}

func (s extSuper) needsCheck() bool { return s.state&extValid == 0 || s.state&extErrors != 0 }

// checkExt4 repairs what e2fsck regards as safe, never more. It is not killed
// in the middle of repairs: it holds the lock of f until it ends.
func (t Tools) checkExt4(ctx context.Context, f *os.File, onlyMarked bool) error {
	args := []string{"-f", "-p", "--", f.Name()}
	if onlyMarked {
		args = args[1:]
	}
	ctx, cancel := context.WithTimeout(ctx, checkBound)
	defer cancel()
	res, err := t.run(ctx, command{tool: "e2fsck", args: args, hold: f, outlive: true})
	if err != nil {
		return fmt.Errorf("check the ext4 on %s: %w", f.Name(), err)
	}
	// 1: repaired; 2: repaired, reboot if mounted (it is not).
	const failed = ^3
	if res.code&failed == 0 {
		return nil
	}
	if res.code&4 != 0 {
		return errs.Errorf(errs.Precondition, "the ext4 on %s has damage that e2fsck does not repair automatically (exit code %d); nothing else was changed: copy the volume, then run \"e2fsck -f\" on the copy manually%s",
			f.Name(), res.code, quoteOutput(res.output))
	}
	return errs.Errorf(errs.Internal, "e2fsck could not check %s (exit code %d)%s", f.Name(), res.code, quoteOutput(res.output))
}
