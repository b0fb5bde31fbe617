package spdktest

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

// TestReplayTLS replays keys of hosts, and listeners with TLS.
func TestReplayTLS(t *testing.T) {
	r := newReplay(t)
	dir := filepath.Join(r.target.config.Root, "var/tmp/tls")
	testkit.Must(t, os.MkdirAll(dir, 0o700))
	secret := func(of string) string {
		key := []byte(strings.Repeat(of, 32))
		return "NVMeTLSkey-1:01:" + base64.StdEncoding.EncodeToString(binary.LittleEndian.AppendUint32(key, crc32.ChecksumIEEE(key))) + ":"
	}
	for name, content := range map[string]string{"one": secret("A"), "two": secret("B"), "line": secret("A") + "\n", "text": "no key"} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	if n := r.run("tls-rpc.jsonl", nil, nil, map[string]time.Duration{}); n != 52 {
		t.Errorf("%d records, want 52", n)
	}
}
