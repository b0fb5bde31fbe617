package local

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

func TestConformanceOnXFS(t *testing.T) { enginetest.Run(t, harness(onXFS)) }

func TestConformanceOnExt4(t *testing.T) { enginetest.Run(t, harness(onExt4)) }

// backingFile is a volume's file, seen as its workload sees it.
type backingFile struct{ *os.File }

func (f backingFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func harness(pool func(testing.TB) string) enginetest.Harness {
	engineOf := func(b volume.Backend) *Engine { return b.Engine.(*Engine) }
	return enginetest.Harness{
		New: func(t *testing.T) volume.Backend { return open(t, config(pool(t))).Backend() },
		Open: func(t *testing.T, b volume.Backend, v volume.Volume) enginetest.Device {
			f, err := os.OpenFile(file(engineOf(b), v), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			return backingFile{f}
		},
		OpenSnapshot: func(t *testing.T, b volume.Backend, s volume.Snapshot) io.ReaderAt {
			f, err := os.Open(filepath.Join(engineOf(b).pool.path, snapshotFile(s.ID)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return f
		},
		Hold: func(t *testing.T, b volume.Backend, v volume.Volume) func() {
			_, release := attach(t, engineOf(b), v)
			return release
		},
		Reopen: func(t *testing.T, b volume.Backend) volume.Backend {
			return reopen(t, engineOf(b)).Backend()
		},
		Size:    8 * mib, // a scratch pool has some 128 MiB for thick promises
		FSTypes: []string{"ext4"},
		Changes: []map[string]string{
			{"provisioning": "thick"}, {"provisioning": "thin", "trimInterval": "1h0m0s"}, {"readAheadKiB": "256"},
		},
	}
}
