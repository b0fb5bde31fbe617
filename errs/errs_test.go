package errs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/cleatproject/cleat/errs"
)

func TestKindOf(t *testing.T) {
	inner := errs.Errorf(errs.NotFound, "no volume %q", "v")
	for name, c := range map[string]struct {
		err  error
		want errs.Kind
	}{
		"made":                {inner, errs.NotFound},
		"wrapped":             {fmt.Errorf("deleting: %w", inner), errs.NotFound},
		"outermost wins":      {errs.Errorf(errs.Precondition, "the source: %w", inner), errs.Precondition},
		"outermost, wrapped":  {fmt.Errorf("a: %w", errs.Errorf(errs.Busy, "b: %w", inner)), errs.Busy},
		"a kind by itself":    {errs.Exhausted, errs.Exhausted},
		"a wrapped kind":      {fmt.Errorf("full: %w", errs.Exhausted), errs.Exhausted},
		"another type":        {errors.New("boom"), errs.Internal},
		"a cause without one": {errs.Errorf(errs.Unavailable, "reading: %w", fs.ErrNotExist), errs.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			if got := errs.KindOf(c.err); got != c.want {
				t.Errorf("KindOf(%v) = %q, want %q", c.err, got, c.want)
			}
			if c.want != errs.Internal && !errors.Is(c.err, c.want) {
				t.Errorf("errors.Is(%v, %q) is false", c.err, c.want)
			}
		})
	}
}

func TestErrorfKeepsCauseAndText(t *testing.T) {
	err := errs.Errorf(errs.Unavailable, "reading %s: %w", "pool.json", fs.ErrNotExist)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error("the cause is lost")
	}
	if want := "reading pool.json: file does not exist"; err.Error() != want {
		t.Errorf("says %q, want %q: the kind does not belong into the text", err, want)
	}
	if errors.Is(err, errs.NotFound) {
		t.Error("has a kind that was not set")
	}
}
