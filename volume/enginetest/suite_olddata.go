package enginetest

import (
	"bytes"
	"errors"
	"io"

	"github.com/cleatproject/cleat/volume"
)

// testOldData fills a volume with data and deletes it. The next one, which can have
// the same place, shows nothing of it, also around what is written there.
func testOldData(t *trial) {
	old := t.create(t.request("old"))
	t.fill(old)
	t.remove(old.ID)
	v := t.create(t.request("new"))
	t.isZero(v, volume.Range{Length: v.Size})
	d := t.open(v)
	defer closing(t.T, d)
	p, want := make([]byte, mib), make([]byte, mib)
	for offset := int64(0); offset < v.Size; offset += mib {
		copy(want, pattern(1, offset))
		_, err := d.WriteAt(want[:sparseBlock], offset)
		if err == nil {
			_, err = d.ReadAt(p, offset)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("a block of the new volume at %d: %v", offset, err)
		}
		if !bytes.Equal(p, want) {
			t.Fatalf("the new volume shows other data than was written to it, from %d on", offset)
		}
	}
}

// fill writes to all bytes of a volume.
func (t *trial) fill(v volume.Volume) {
	t.Helper()
	d := t.open(v)
	defer closing(t.T, d)
	data := bytes.Repeat([]byte("old data"), mib/8)
	for offset := int64(0); offset < v.Size; offset += mib {
		if _, err := d.WriteAt(data, offset); err != nil {
			t.Fatalf("writing volume %s at %d: %v", v.ID, offset, err)
		}
	}
	if err := d.Sync(); err != nil {
		t.Fatalf("syncing volume %s: %v", v.ID, err)
	}
}
