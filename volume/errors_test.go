package volume_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/cleatproject/cleat/volume"
)

func TestKindOf(t *testing.T) {
	inner := volume.Errorf(volume.NotFound, "no volume %q", "v")
	for name, c := range map[string]struct {
		err  error
		want volume.Kind
	}{
		"made":                {inner, volume.NotFound},
		"wrapped":             {fmt.Errorf("deleting: %w", inner), volume.NotFound},
		"outermost wins":      {volume.Errorf(volume.Precondition, "the source: %w", inner), volume.Precondition},
		"outermost, wrapped":  {fmt.Errorf("a: %w", volume.Errorf(volume.Busy, "b: %w", inner)), volume.Busy},
		"a kind by itself":    {volume.Exhausted, volume.Exhausted},
		"a wrapped kind":      {fmt.Errorf("full: %w", volume.Exhausted), volume.Exhausted},
		"a stranger":          {errors.New("boom"), volume.Internal},
		"a cause without one": {volume.Errorf(volume.Unavailable, "reading: %w", fs.ErrNotExist), volume.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			if got := volume.KindOf(c.err); got != c.want {
				t.Errorf("KindOf(%v) = %q, want %q", c.err, got, c.want)
			}
			if c.want != volume.Internal && !errors.Is(c.err, c.want) {
				t.Errorf("errors.Is(%v, %q) is false", c.err, c.want)
			}
		})
	}
}

func TestErrorfKeepsCauseAndText(t *testing.T) {
	err := volume.Errorf(volume.Unavailable, "reading %s: %w", "pool.json", fs.ErrNotExist)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error("the cause is lost")
	}
	if want := "reading pool.json: file does not exist"; err.Error() != want {
		t.Errorf("says %q, want %q: the kind does not belong into the text", err, want)
	}
	if errors.Is(err, volume.NotFound) {
		t.Error("is of a kind that nobody gave it")
	}
}
