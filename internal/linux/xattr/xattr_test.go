package xattr

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

func TestSetGetRemove(t *testing.T) {
	for _, fstype := range []string{"xfs", "ext4", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			f := create(t, scratchfs.Mount(t, fstype))
			const name = Prefix + "provisioning"
			expect(t, f, name, "", false)
			for _, value := range []string{"thin", "thick", "", strings.Repeat("x", MaxValue)} {
				testkit.Must(t, Set(f, name, value))
				expect(t, f, name, value, true)
			}
			for range 2 {
				testkit.Must(t, Remove(f, name))
				expect(t, f, name, "", false)
			}
		})
	}
}

func create(t *testing.T, dir string) *os.File {
	t.Helper()
	return testkit.Open(os.Create(filepath.Join(dir, "file")))(t)
}

func expect(t *testing.T, f *os.File, name, value string, present bool) {
	t.Helper()
	if got, ok, err := Get(f, name); err != nil || got != value || ok != present {
		t.Errorf("Get = %q, %v, %v; want %q, %v", got, ok, err, value, present)
	}
}

func TestRefusesOtherNames(t *testing.T) {
	f := create(t, t.TempDir())
	for _, name := range []string{"", Prefix, "provisioning", "user.other.name", "security.selinux", Prefix + strings.Repeat("x", 250), Prefix + "a\x00b"} {
		_, _, err := Get(f, name)
		for _, err := range []error{err, Set(f, name, "x"), Remove(f, name)} {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("name %.20q: error %v, want errs.Invalid", name, err)
			}
		}
	}
	testkit.WantError(t, "a value that is too long", Set(f, Prefix+"long", strings.Repeat("x", MaxValue+1)), errs.Invalid)
}

func TestUnsupported(t *testing.T) {
	f, err := os.Open("/proc/self/status")
	testkit.Must(t, err)
	defer f.Close()
	_, _, err = Get(f, Prefix+"x")
	for verb, err := range map[string]error{"Get": err, "Set": Set(f, Prefix+"x", "y"), "Remove": Remove(f, Prefix+"x")} {
		if !errors.Is(err, ErrUnsupported) || errs.KindOf(err) != errs.Unsupported {
			t.Errorf("%s on proc: error %v, want ErrUnsupported", verb, err)
		}
	}
}
