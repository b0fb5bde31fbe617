package image

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

// readArchive lists an archive's entries as "mode name content", independent of
// the writer.
func readArchive(t *testing.T, data []byte) []string {
	t.Helper()
	var all []string
	for at := 0; at < len(data); {
		var field [13]uint32
		if string(data[at:at+6]) != "070701" {
			t.Fatalf("no header at %d: %q", at, data[at:at+6])
		}
		for i := range field {
			testkit.Value(fmt.Sscanf(string(data[at+6+8*i:at+14+8*i]), "%08X", &field[i]))(t)
		}
		mode, size, nameSize := field[1], int(field[6]), int(field[11])
		name := string(data[at+110 : at+110+nameSize-1])
		start := (at + 110 + nameSize + 3) &^ 3
		if name == "TRAILER!!!" {
			if rest := data[start:]; len(bytes.Trim(rest, "\x00")) > 0 || len(data)%512 != 0 {
				t.Fatalf("got an archive of %d bytes with the end %q", len(data), rest)
			}
			return all
		}
		all = append(all, fmt.Sprintf("%o %s %s", mode, name, data[start:start+size]))
		at = (start + size + 3) &^ 3
	}
	t.Fatal("no trailer")
	return nil
}

func TestArchive(t *testing.T) {
	host := filepath.Join(t.TempDir(), "program")
	testkit.Must(t, os.WriteFile(host, []byte("12345"), 0o600))
	var b bytes.Buffer
	err := WriteArchive(&b, Tree{
		"usr/bin/program": {Host: host, Mode: 0o755}, "bin": {Link: "usr/bin"}, "etc/a/b": {Data: []byte("text"), Mode: 0o640}, "etc/a/c": {Mode: 0o600},
	})
	testkit.Must(t, err)
	want := []string{
		"120777 bin usr/bin", "40755 etc ", "40755 etc/a ", "100640 etc/a/b text", "100600 etc/a/c ", "40755 usr ", "40755 usr/bin ", "100755 usr/bin/program 12345",
	}
	if diff := cmp.Diff(want, readArchive(t, b.Bytes())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	err = WriteArchive(&b, Tree{"a": {Host: host + "-absent"}})
	if err == nil || !strings.Contains(err.Error(), "initramfs: a: ") {
		t.Errorf("missing host file: got %v", err)
	}
}

func TestPath(t *testing.T) {
	for in, want := range map[string]string{"/sbin/x": "usr/sbin/x", "/usr/bin/../bin/y": "usr/bin/y", "/lib64/l": "usr/lib64/l", "/etc/z": "etc/z", "/library": "library"} {
		if got := Path(in); got != want {
			t.Errorf("Path(%q) is %q, want %q", in, got, want)
		}
	}
}
