package poolfile_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/xattr"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/test/testkit"
)

func newFile(t *testing.T) *os.File {
	t.Helper()
	f := testkit.Value(os.CreateTemp(t.TempDir(), ""))(t)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	f := newFile(t)
	got := testkit.Value(poolfile.Read(f))(t)
	if diff := cmp.Diff(poolfile.Attributes{ReadAheadKiB: -1}, got); diff != "" {
		t.Error("no attributes:", diff)
	}
	testkit.Must(t,
		poolfile.WriteSettings(f, poolfile.Settings{Provisioning: poolfile.Thick, TrimInterval: "1h30m0s", ReadAhead: "0"}),
		poolfile.WriteSize(f, 1<<40), poolfile.WriteReaders(f, []string{"a", "b"}))
	want := poolfile.Attributes{Thick: true, TrimInterval: 90 * time.Minute, Size: 1 << 40, Readers: []string{"a", "b"}}
	got = testkit.Value(poolfile.Read(f))(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("all attributes:", diff)
	}
	testkit.Must(t, poolfile.WriteSettings(f, poolfile.Settings{Provisioning: poolfile.Thin}), poolfile.WriteReaders(f, nil))
	got = testkit.Value(poolfile.Read(f))(t)
	if diff := cmp.Diff(poolfile.Attributes{ReadAheadKiB: -1, Size: 1 << 40}, got); diff != "" {
		t.Error("reset attributes:", diff)
	}
	testkit.WantError(t, "too many readers", poolfile.WriteReaders(f, make([]string, xattr.MaxValue+2)), errs.Busy, "copies in progress")
}

func TestBrokenAttributes(t *testing.T) {
	for name, value := range map[string]string{
		"trim-interval": "a day", "read-ahead-kib": "-1", "size": "big",
	} {
		f := newFile(t)
		testkit.Must(t, xattr.Set(f, xattr.Prefix+name, value))
		_, err := poolfile.Read(f)
		testkit.WantError(t, name, err, errs.Internal, name, value)
	}
}

func FuzzReadPool(f *testing.F) {
	f.Add(`{"version":1,"uuid":"0f0e0d0c-0b0a-4908-8706-050403020100"}`)
	f.Add(`{"version":1,"uuid":` + strings.Repeat(" ", 5000) + `"x"}`)
	f.Fuzz(func(t *testing.T, content string) {
		p, err := poolfile.ReadPool(strings.NewReader(content))
		if err == nil && len(content) > 4096 {
			t.Errorf("%d bytes were read as %+v", len(content), p)
		}
	})
}
