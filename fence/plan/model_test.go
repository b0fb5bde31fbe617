package plan

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/volume"
)

// The model is slow and obvious: 16 IPv4 and 16 IPv6 addresses, blocks as
// bitmaps, and linear search.

// world is a set of addresses: IPv4 in the low half, IPv6 in the high.
type world uint32

// corners are the model's first addresses; the last IPv4 and IPv6 addresses are
// in range.
func corners() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("255.255.255.240"), netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0")}
}

func addrsOf(block netip.Prefix) world {
	var w world
	bit := 0
	for _, addr := range corners() {
		for range 16 {
			if block.Contains(addr) {
				w |= 1 << bit
			}
			addr, bit = addr.Next(), bit+1
		}
	}
	return w
}

func areaOf(blocks []netip.Prefix) world {
	var w world
	for _, block := range blocks {
		w |= addrsOf(block)
	}
	return w
}

type record struct {
	block  netip.Prefix
	owner  volume.FenceOwner
	phase  volume.FencePhase
	since  time.Time
	force  bool
	absent bool
}

type model struct{ records []*record }

// find returns the record of a block and owner, or an absent one.
func (m *model) find(block netip.Prefix, owner volume.FenceOwner) *record {
	for _, r := range m.records {
		if r.block == block && r.owner.Digest == owner.Digest {
			return r
		}
	}
	r := &record{block: block, owner: owner, absent: true}
	m.records = append(m.records, r)
	return r
}

func (r *record) denies() bool {
	return !r.absent && (r.phase == volume.Fencing || r.phase == volume.Fenced || r.phase == volume.Lifting)
}

func (r *record) desired() bool {
	return !r.absent && (r.phase == volume.Fencing || r.phase == volume.Fenced)
}

func (m *model) fence(req Request, at time.Time) {
	for _, block := range req.Blocks {
		if r := m.find(block, req.Owner); r.desired() {
			r.force = r.force || req.Force
		} else {
			*r = record{block: block, owner: req.Owner, phase: volume.Fencing, since: at, force: req.Force}
		}
	}
}

func (m *model) confirm(req Request, at time.Time) {
	for _, block := range req.Blocks {
		if r := m.find(block, req.Owner); !r.absent && r.phase == volume.Fencing {
			r.phase, r.since = volume.Fenced, at
		}
	}
}

// refused: a block was never fenced, and another fence denies one of its
// addresses.
func (m *model) refused(req Request) bool {
	for _, block := range req.Blocks {
		if !m.find(block, req.Owner).absent {
			continue
		}
		for _, r := range m.records {
			lifted := r.owner.Digest == req.Owner.Digest && slices.Contains(req.Blocks, r.block)
			if r.denies() && !lifted && addrsOf(r.block)&addrsOf(block) != 0 {
				return true
			}
		}
	}
	return false
}

func (m *model) unfence(req Request, at time.Time) {
	for _, block := range req.Blocks {
		if r := m.find(block, req.Owner); r.desired() {
			r.phase, r.since = volume.Lifting, at
		}
	}
}

func (m *model) forget(req Request, at time.Time) {
	for _, block := range req.Blocks {
		if r := m.find(block, req.Owner); !r.absent && r.phase == volume.Lifting {
			r.phase, r.since = volume.Lifted, at
		}
	}
	var denied world
	for _, r := range m.records {
		if r.denies() {
			denied |= addrsOf(r.block)
		}
	}
	for _, r := range m.records {
		if !r.absent && r.phase == volume.Lifted && denied&addrsOf(r.block) == 0 {
			r.absent = true
		}
	}
}

func (m *model) area() world {
	var w world
	for _, r := range m.records {
		if r.desired() {
			w |= addrsOf(r.block)
		}
	}
	return w
}

// list is the expected result.
func (m *model) list() []volume.Fence {
	var list []volume.Fence
	for _, r := range m.records {
		if !r.absent {
			list = append(list, volume.Fence{Block: r.block, Owner: r.owner, Phase: r.phase, Since: r.since, Force: r.force})
		}
	}
	slices.SortFunc(list, Compare)
	return list
}

func drawAsk(t *rapid.T) Request {
	block := rapid.Custom(func(t *rapid.T) netip.Prefix {
		addr := rapid.SampledFrom(corners()).Draw(t, "corner")
		for range rapid.IntRange(0, 15).Draw(t, "address") {
			addr = addr.Next()
		}
		fewer := rapid.IntRange(0, 5).Draw(t, "fewer bits") // the largest block has 16, and 16 are outside
		return netip.PrefixFrom(addr, addr.BitLen()-fewer).Masked()
	})
	blocks := rapid.SliceOfN(block, 1, 5).Draw(t, "blocks")
	slices.SortFunc(blocks, netip.Prefix.Compare)
	digest := rapid.SampledFrom([]string{"aa", "bb", "cc"}).Draw(t, "owner")
	return Request{Owner: volume.FenceOwner{Digest: digest}, Blocks: slices.Compact(blocks), Force: rapid.Bool().Draw(t, "force")}
}

type pair struct {
	m    model
	now  []volume.Fence
	last Request
	tick int64
}

// next draws a request. Half of them continue the previous one, like a server.
func (p *pair) next(t *rapid.T) (Request, time.Time) {
	if len(p.last.Blocks) == 0 || !rapid.Bool().Draw(t, "go on") {
		p.last = drawAsk(t)
	}
	p.tick++
	return p.last, time.Unix(p.tick, 0)
}

func (p *pair) step(real func([]volume.Fence, Request, time.Time) []volume.Fence, model func(Request, time.Time)) func(*rapid.T) {
	return func(t *rapid.T) {
		req, at := p.next(t)
		before := slices.Clone(p.now)
		after := real(p.now, req, at)
		if !same(before, p.now) {
			t.Fatalf("the list that was given changed to %v", phases(p.now))
		}
		checkOthers(t, before, after, req.Owner)
		model(req, at)
		p.now = after
		if again := real(p.now, req, at.Add(time.Hour)); !same(again, p.now) {
			t.Fatalf("a repeat changes %v to %v", phases(p.now), phases(again))
		}
	}
}

func (p *pair) unfence(t *rapid.T) {
	req, at := p.next(t)
	before, area := slices.Clone(p.now), p.m.area()
	after, err := Unfence(p.now, req, at)
	if refused := p.m.refused(req); refused != (err != nil) {
		t.Fatalf("unfence %v of %s in %v: got %v, the model refuses: %t", req.Blocks, req.Owner.Digest, phases(p.now), err, refused)
	}
	if !same(before, p.now) {
		t.Fatalf("the list that was given changed to %v", phases(p.now))
	}
	if err != nil {
		return
	}
	p.m.unfence(req, at)
	released, err := Released(p.now, after)
	if got, want := areaOf(released), area&^p.m.area(); got != want || err != nil {
		t.Fatalf("released %032b, %v; want %032b", got, err, want)
	}
	checkOthers(t, before, after, req.Owner)
	p.now = after
	if again, err := Unfence(p.now, req, at.Add(time.Hour)); err != nil || !same(again, p.now) {
		t.Fatalf("a repeat changes %v to %v, %v", phases(p.now), phases(again), err)
	}
	if _, err := Unfence(Forget(p.now, req, at), req, at); err != nil {
		t.Fatalf("a repeat of what was answered is refused: %v", err)
	}
}

func (p *pair) check(t *rapid.T) {
	if want := p.m.list(); !same(want, p.now) {
		t.Fatalf("the model has another list (-model +got):\n%s", cmp.Diff(want, p.now, compared))
	}
	desired, err := Desired(p.now)
	if err != nil {
		t.Fatal(err)
	}
	checkArea(t, desired, p.m.area())
}

// sequence runs steps of several owners in any order, even impossible ones.
func sequence(t *rapid.T) {
	var p pair
	t.Repeat(map[string]func(*rapid.T){
		"fence":   p.step(Fence, p.m.fence),
		"confirm": p.step(Confirm, p.m.confirm),
		"unfence": p.unfence,
		"forget":  p.step(Forget, p.m.forget),
		"":        p.check,
	})
}

// same compares lists as cmp would, in a hundredth of the time.
func same(a, b []volume.Fence) bool { return slices.EqualFunc(a, b, sameRecord) }

func sameRecord(a, b volume.Fence) bool {
	return Compare(a, b) == 0 && a.Phase == b.Phase && a.Since.Equal(b.Since) && a.Force == b.Force && slices.Equal(a.Owner.Keys, b.Owner.Keys)
}

func checkOthers(t *rapid.T, before, after []volume.Fence, owner volume.FenceOwner) {
	for _, f := range before {
		if f.Owner.Digest != owner.Digest && f.Denies() && !slices.ContainsFunc(after, func(g volume.Fence) bool { return sameRecord(f, g) }) {
			t.Fatalf("%s changed %v", owner.Digest, phases([]volume.Fence{f}))
		}
	}
}

// checkArea: exactly these addresses, disjoint, sorted and merged.
func checkArea(t *rapid.T, blocks []netip.Prefix, want world) {
	if got := areaOf(blocks); got != want {
		t.Fatalf("%v are %032b, want %032b", blocks, got, want)
	}
	count := 0
	for i, p := range blocks {
		count += bits.OnesCount32(uint32(addrsOf(p)))
		if i == 0 {
			continue
		}
		q := blocks[i-1]
		larger := netip.PrefixFrom(q.Addr(), q.Bits()-1).Masked()
		if q.Compare(p) >= 0 || p.Bits() == q.Bits() && larger.Contains(p.Addr()) {
			t.Fatalf("%v: %s does not belong behind %s", blocks, p, q)
		}
	}
	if count != bits.OnesCount32(uint32(want)) {
		t.Fatalf("%v overlap", blocks)
	}
}

func TestModel(t *testing.T) { rapid.Check(t, sequence) }

func FuzzModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(sequence)) }

func TestOverlapping(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.Custom(func(t *rapid.T) netip.Prefix {
			// Few values, so that blocks nest.
			b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 128, 255}), 16, 16).Draw(t, "bytes")
			addr := netip.AddrFrom16([16]byte(b))
			if rapid.Bool().Draw(t, "IPv4") {
				addr = netip.AddrFrom4([4]byte(b[:4]))
			}
			return netip.PrefixFrom(addr, rapid.IntRange(0, addr.BitLen()).Draw(t, "bits")).Masked()
		})
		var list []volume.Fence
		for _, p := range rapid.SliceOfN(block, 0, 20).Draw(t, "fences") {
			phase := rapid.SampledFrom([]volume.FencePhase{volume.Fencing, volume.Fenced, volume.Lifting, volume.Lifted}).Draw(t, "phase")
			list = append(list, volume.Fence{Block: p, Owner: volume.FenceOwner{Digest: fmt.Sprint(len(list))}, Phase: phase})
		}
		slices.SortFunc(list, Compare)
		p := block.Draw(t, "block")
		want := slices.ContainsFunc(list, func(f volume.Fence) bool { return f.Denies() && f.Block.Overlaps(p) })
		f, got := newDenyIndex(list, func(volume.Fence) bool { return true }).overlapping(p)
		if got != want || got && !(f.Denies() && f.Block.Overlaps(p)) {
			t.Fatalf("%s in %v: got %v %t, want %t", p, phases(list), f, got, want)
		}
	})
}
