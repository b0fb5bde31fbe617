package disk

import (
	"bytes"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a disk, by default of 1 MiB, and closes it at the end of the test.
func open(t *testing.T, spec Spec) *Disk {
	t.Helper()
	if spec.Path == "" {
		spec.Path = filepath.Join(t.TempDir(), "disk")
	}
	if spec.Size == 0 {
		spec.Size = 1 << 20
	}
	d := testkit.Open(Open(spec))(t)
	return d
}

// guest is a client of a disk. Failures end the test.
type guest struct {
	t *testing.T
	c *nbd.Client
}

func attach(t *testing.T, d *Disk) guest {
	t.Helper()
	c := testkit.Value(nbd.Dial(t.Context(), d.Socket()))(t)
	t.Cleanup(func() { c.Close() })
	return guest{t, c}
}

func (g guest) do(r nbd.Request) []byte {
	g.t.Helper()
	data, err := g.c.Do(r)
	if err != nil {
		g.t.Fatalf("%v of %d bytes at %d: %v", r.Command, r.Length, r.Offset, err)
	}
	return data
}

// send sends a request without waiting for its answer.
func (g guest) send(r nbd.Request) {
	g.t.Helper()
	testkit.Value(g.c.Send(r))(g.t)
}

// blockSize is the default physical block size.
const blockSize = 4096

// fill returns a block filled with b.
func fill(b byte) []byte { return bytes.Repeat([]byte{b}, blockSize) }

func write(block int, b byte) nbd.Request {
	return nbd.Request{Command: nbd.Write, Offset: uint64(block) * blockSize, Length: blockSize, Data: fill(b)}
}

func fua(r nbd.Request) nbd.Request { r.FUA = true; return r }

var flush = nbd.Request{Command: nbd.Flush}

// first returns the first byte of each of the first n blocks, '.' for 0. A
// block with different bytes fails the test.
func (g guest) first(n int) string {
	g.t.Helper()
	var all []byte
	for block := range n {
		data := g.do(nbd.Request{Command: nbd.Read, Offset: uint64(block) * blockSize, Length: blockSize})
		if !bytes.Equal(data, fill(data[0])) {
			g.t.Errorf("block %d is torn", block)
		}
		if data[0] == 0 {
			data[0] = '.'
		}
		all = append(all, data[0])
	}
	return string(all)
}

func cyclePower(t *testing.T, d *Disk) {
	t.Helper()
	testkit.Must(t, d.LosePower())
	testkit.Must(t, d.PowerOn())
}
