package disk

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// model is a simple reference disk: for each block, all contents that a power
// loss can leave, oldest (durable) first.
type model struct {
	unit   int
	blocks [][]content
}

type content struct {
	mark uint64 // Mark of a request that arrives when this content is the latest
	data []byte
}

const (
	modelBlocks = 12
	// ample is a cache size that no history exceeds.
	ample = 16 << 20
)

func newModel(unit int) *model {
	m := &model{unit: unit, blocks: make([][]content, modelBlocks)}
	for b := range m.blocks {
		m.blocks[b] = []content{{0, make([]byte, unit)}}
	}
	return m
}

func (m *model) newest() []byte {
	var all []byte
	for _, b := range m.blocks {
		all = append(all, b[len(b)-1].data...)
	}
	return all
}

func (m *model) write(off int, data []byte, fua bool, mark uint64) {
	all := m.newest()
	copy(all[off:], data)
	for b := off / m.unit; b*m.unit < off+len(data); b++ {
		m.blocks[b] = append(m.blocks[b], content{mark, all[b*m.unit : (b+1)*m.unit]})
		if fua {
			m.blocks[b] = m.blocks[b][len(m.blocks[b])-1:]
		}
	}
}

func (m *model) flush(mark uint64) {
	for b, allowed := range m.blocks {
		later := slices.IndexFunc(allowed, func(c content) bool { return c.mark > mark })
		if later < 0 {
			later = len(allowed)
		}
		m.blocks[b] = allowed[max(later-1, 0):]
	}
}

// losePower verifies the contents after a power loss and adopts them.
func (m *model) losePower(left []byte, s Survival, bounded bool) error {
	for b, allowed := range m.blocks {
		got := left[b*m.unit : (b+1)*m.unit]
		switch i := slices.IndexFunc(allowed, func(c content) bool { return bytes.Equal(c.data, got) }); {
		case i < 0:
			return fmt.Errorf("block %d has none of its %d allowed contents", b, len(allowed))
		case s == SurviveAll && !bytes.Equal(got, allowed[len(allowed)-1].data):
			return fmt.Errorf("all writes must survive, but block %d is not the newest version", b)
		case s == SurviveNone && !bounded && !bytes.Equal(got, allowed[0].data):
			return fmt.Errorf("only flushed writes must survive, but block %d is not the durable version", b)
		}
		m.blocks[b] = []content{{0, got}}
	}
	return nil
}

// machine drives the disk and the model.
type machine struct {
	spec  Spec
	disk  *Disk
	model *model
	marks []uint64 // of flushes that have arrived but are not carried out
	salt  byte
}

func (m *machine) do(t *rapid.T, r nbd.Request) []byte {
	if r.Command == nbd.Write {
		r.Length = uint32(len(r.Data))
	}
	a := m.disk.session.Do(r)
	if a.Error != nbd.OK {
		t.Fatalf("%v of %d bytes at %d: %v", r.Command, r.Length, r.Offset, a.Error)
	}
	return a.Data
}

func (m *machine) size() int { return modelBlocks * m.spec.Block }

func (m *machine) extent(t *rapid.T) (off, length int) {
	off = sector * rapid.IntRange(0, m.size()/sector-1).Draw(t, "sector")
	length = sector * rapid.IntRange(1, min((m.size()-off)/sector, 3*m.spec.Block/sector)).Draw(t, "sectors")
	return off, length
}

func (m *machine) Write(t *rapid.T) {
	off, length := m.extent(t)
	m.salt++
	data := bytes.Repeat([]byte{m.salt}, length)
	fua := rapid.IntRange(0, 4).Draw(t, "fua") == 0
	m.do(t, nbd.Request{Command: nbd.Write, Offset: uint64(off), Data: bytes.Clone(data), FUA: fua})
	m.model.write(off, data, fua, m.disk.session.Mark())
}

func (m *machine) Zero(t *rapid.T) {
	off, length := m.extent(t)
	c := rapid.SampledFrom([]nbd.Command{nbd.WriteZeroes, nbd.Trim}).Draw(t, "command")
	fua := rapid.IntRange(0, 4).Draw(t, "fua") == 0
	m.do(t, nbd.Request{Command: c, Offset: uint64(off), Length: uint32(length), FUA: fua})
	m.model.write(off, make([]byte, length), fua, m.disk.session.Mark())
}

func (m *machine) FlushArrives(*rapid.T) { m.marks = append(m.marks, m.disk.session.Mark()) }

func (m *machine) Flush(t *rapid.T) {
	if len(m.marks) == 0 {
		m.FlushArrives(t)
	}
	m.do(t, nbd.Request{Command: nbd.Flush, Mark: m.marks[0]})
	m.model.flush(m.marks[0])
	m.marks = m.marks[1:]
}

func (m *machine) Read(t *rapid.T) {
	off, length := m.extent(t)
	got := m.do(t, nbd.Request{Command: nbd.Read, Offset: uint64(off), Length: uint32(length)})
	if !bytes.Equal(got, m.model.newest()[off:off+length]) {
		t.Fatalf("%d bytes at %d are not the latest written data", length, off)
	}
}

func (m *machine) LosePower(t *rapid.T) {
	s := rapid.SampledFrom([]Survival{SurviveSome, SurviveNone, SurviveAll}).Draw(t, "survival")
	m.disk.Survive(s)
	testkit.Must(t, m.disk.LosePower())
	testkit.Must(t, m.disk.PowerOn())
	m.marks = nil
	left := m.do(t, nbd.Request{Command: nbd.Read, Length: uint32(m.size())})
	testkit.Must(t, m.model.losePower(left, s, m.spec.Cache < ample))
}

func (m *machine) Reopen(t *rapid.T) {
	testkit.Must(t, m.disk.Close())
	m.disk = testkit.Value(Open(m.spec))(t)
	m.marks = nil
	left := m.do(t, nbd.Request{Command: nbd.Read, Length: uint32(m.size())})
	testkit.Must(t, m.model.losePower(left, SurviveAll, false))
}

// Check verifies that the whole disk reads the latest written data.
func (m *machine) Check(t *rapid.T) {
	if got := m.do(t, nbd.Request{Command: nbd.Read, Length: uint32(m.size())}); !bytes.Equal(got, m.model.newest()) {
		t.Fatal("the disk does not read the latest written data")
	}
	if c := m.disk.cache; c.cost > m.spec.Cache || c.cost < 0 || c.bytes() < 0 {
		t.Fatalf("got a cache of %d bytes, want at most %d", c.cost, m.spec.Cache)
	}
}

func TestDiskMatchesModel(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		m := &machine{spec: Spec{
			Path:  filepath.Join(dir, fmt.Sprint(n)),
			Block: rapid.SampledFrom([]int{512, 4096}).Draw(t, "block"),
			Cache: rapid.SampledFrom([]int64{1, 10 << 10, ample}).Draw(t, "cache"),
			Seed:  rapid.Uint64().Draw(t, "seed"),
		}}
		m.spec.Size = int64(m.size())
		m.disk = testkit.Value(Open(m.spec))(t)
		defer func() {
			if err := m.disk.Close(); err != nil {
				t.Error(err)
			}
		}()
		m.model = newModel(m.spec.Block)
		actions := rapid.StateMachineActions(m)
		// A power loss resets the history, so it must be rare.
		for _, more := range []string{"Write", "Write", "Write", "Zero", "Flush", "FlushArrives"} {
			actions[more+fmt.Sprint(len(actions))] = actions[more]
		}
		t.Repeat(actions)
	})
}
