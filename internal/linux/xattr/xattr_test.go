package xattr

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/scratchfs"
)

func TestSetGetRemove(t *testing.T) {
	for _, fstype := range []string{"xfs", "ext4", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			f := create(t, scratchfs.Mount(t, fstype))
			const name = Prefix + "provisioning"
			expect(t, f, name, "", false)
			for _, value := range []string{"thin", "thick", "", strings.Repeat("x", MaxValue)} {
				if err := Set(f, name, value); err != nil {
					t.Fatal(err)
				}
				expect(t, f, name, value, true)
			}
			for range 2 {
				if err := Remove(f, name); err != nil {
					t.Fatal(err)
				}
				expect(t, f, name, "", false)
			}
		})
	}
}

func create(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func expect(t *testing.T, f *os.File, name, value string, present bool) {
	t.Helper()
	got, ok, err := Get(f, name)
	if err != nil || got != value || ok != present {
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
	if err := Set(f, Prefix+"long", strings.Repeat("x", MaxValue+1)); !errors.Is(err, errs.Invalid) {
		t.Errorf("a value that is too long: error %v, want errs.Invalid", err)
	}
}

func TestUnsupported(t *testing.T) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, _, err = Get(f, Prefix+"x")
	for verb, err := range map[string]error{"Get": err, "Set": Set(f, Prefix+"x", "y"), "Remove": Remove(f, Prefix+"x")} {
		if !errors.Is(err, ErrUnsupported) || errs.KindOf(err) != errs.Unsupported {
			t.Errorf("%s on proc: error %v, want ErrUnsupported", verb, err)
		}
	}
}
