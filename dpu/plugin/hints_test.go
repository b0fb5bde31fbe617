package plugin

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/spdk/spdktest"
)

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.String()
}

// SNAP says the same of a wrong key as of a target that is down.
func TestAttachErrorNamesKeys(t *testing.T) {
	t.Parallel()
	keys := t.TempDir()
	r := newRig(t, spdktest.Config{}, func(_ *Config, c *object.Config) { c.KeyDir = keys })
	r.must(os.WriteFile(filepath.Join(keys, "k"), []byte("not a key"), 0o600))
	for key, words := range map[string]string{"tlsKey": "or refuses the key of TLS", "dhchapKey": "or refuses the key of DH-HMAC-CHAP"} {
		r.refused(nvme(key, "nqn.2016-06.io.spdk:absent", key, "k"), "does not tell", words)
	}
	r.refused(nvme("both", "nqn.2016-06.io.spdk:absent", "tlsKey", "k", "dhchapKey", "k"), "or refuses a key, of DH-HMAC-CHAP or TLS")
	if err := r.refused(nvme("none", "nqn.2016-06.io.spdk:absent"), "does not tell"); strings.Contains(err.Error(), "key") {
		t.Errorf("a volume without keys: %v", err)
	}
}

func TestMisspeltKeysAreLogged(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	r := newRig(t, spdktest.Config{}, func(c *Config, _ *object.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	r.target(one, 1)
	r.create(nvme("v", one, "dhchap", "k"))
	if !strings.Contains(log.text(), "dhchapKey?") {
		t.Errorf("the log has no word of the key dhchap: %s", log.text())
	}
	q := nvme("w", "", "nqm", one)
	delete(q.Contexts.Volume, "nqn")
	r.refused(q, "nqn is missing", "nqm")
}
