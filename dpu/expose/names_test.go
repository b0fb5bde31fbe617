package expose

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
)

func TestParameters(t *testing.T) {
	got, err := Parameters([]string{"a=1", "b=true", "c=t", "d=-7", "e=0x1", "f=", "g=k=v", "h=False"})
	want := map[string]any{"a": 1, "b": true, "c": true, "d": -7, "e": "0x1", "f": "", "g": "k=v", "h": false}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for _, args := range [][]string{{"a"}, {"=1"}, {"a=1", "a=1"}} {
		if _, err := Parameters(args); err == nil || errs.KindOf(err) != errs.Invalid {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// An NQN is one, whatever the name, and no two names share one.
func TestNQN(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		x, y := NQN(a), NQN(b)
		if len(x) > 223 || !strings.HasPrefix(x, "nqn.2022-10.io.nvda.nvme:dpf-") || (x == y) != (a == b) {
			t.Errorf("%q: %s, %q: %s", a, x, b, y)
		}
		if rest := strings.TrimPrefix(x, ownNQN); strings.Trim(rest, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") != "" {
			t.Errorf("%q: %s", a, x)
		}
	})
}

func TestPCI(t *testing.T) {
	for in, want := range map[string]string{
		"5e:00.2": "0000:5e:00.2", "0000:5E:00.2": "0000:5e:00.2", "00010000:5e:00.2": "00010000:5e:00.2", "": "", "x": "x",
	} {
		if got := pci(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
