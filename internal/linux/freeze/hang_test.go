package freeze

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/linux/scratchfs"
)

// stacked mounts a file system whose image lies on another one. Once the outer
// is frozen a freeze of the inner hangs in the kernel, for it cannot write.
func stacked(t *testing.T) (outer, inner string) {
	t.Helper()
	outer = mount(t, "xfs")
	image := filepath.Join(outer, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, scratchfs.Size); err != nil {
		t.Fatal(err)
	}
	scratchfs.Run(t, "mkfs.ext4", "-q", "-b", "4096", image)
	inner = t.TempDir()
	scratchfs.MountImage(t, "ext4", image, inner)
	t.Cleanup(func() {
		// In this order, or the second hangs with the first.
		if err := errors.Join(ThawPath(outer), ThawPath(inner)); err != nil {
			t.Error(err)
		}
		scratchfs.Run(t, "umount", inner)
	})
	return outer, inner
}

func TestFreezeThatHangsEndsWithTheBound(t *testing.T) {
	outer, inner := stacked(t)
	_, err := self.Freeze(t.Context(), []string{outer, inner}, 300*time.Millisecond)
	if !errors.Is(err, ErrExpired) {
		t.Errorf("error %v, want ErrExpired", err)
	}
	mustWrite(t, "outer", writer(t, outer))
	mustWrite(t, "inner", writer(t, inner))
}

func TestFreezeThatHangsIsGivenUp(t *testing.T) {
	outer, inner := stacked(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_, err := self.Freeze(ctx, []string{outer, inner}, time.Minute)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
	if took := time.Since(begun); took > within {
		t.Errorf("it took %v to give up", took)
	}
	mustWrite(t, "outer", writer(t, outer))
	mustWrite(t, "inner", writer(t, inner))
}

// What cannot be written back is never frozen, and a guard that waits for it
// can be called off.
func TestWriteBackThatHangs(t *testing.T) {
	outer, inner := stacked(t)
	mustWrite(t, "inner", writer(t, inner))
	scratchfs.Run(t, "fsfreeze", "--freeze", outer)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	roots, err := openRoots([]string{inner})
	if err != nil {
		t.Fatal(err)
	}
	f, err := self.start(roots, []string{inner}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-f.ready:
		t.Error("frozen, although it could not be written back")
	case <-f.done:
		t.Errorf("the guard gave up by itself: %v", f.err)
	case <-ctx.Done():
	}
	f.release()
	if err := ThawPath(outer); err != nil {
		t.Fatal(err)
	}
	<-f.done
	if f.story.began || f.err != nil {
		t.Errorf("it came to freezing (%v), or %v", f.story.began, f.err)
	}
	mustWrite(t, "inner", writer(t, inner))
}
