package blocklist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

var errLost = errors.New("no answer")

// fakeCluster behaves as Ceph 16.2.15 was measured to.
type fakeCluster struct {
	mu       sync.Mutex
	epoch    uint64
	single   map[string]string // as in osd dump
	ranges   map[string]string // nil: a release without them
	osds     []*fakeOSD
	pgs      [2]fakePG
	watchers map[volume.ID][]Watcher
	changes  []string // commands that changed the blocklist
	// fault runs before a call, and its result before the answer: an error is
	// returned instead.
	fault func(call string) (after func() error, err error)
}

type fakeOSD struct {
	down bool
	// lag is how many questions it answers before it has the newest map.
	lag      int
	newest   uint64
	enforced blocked
	denied   bool
}

// fakePG answers "query".
type fakePG struct {
	lag      int // questions that it answers with an old map
	unserved bool
}

// blocked is the blocklist of one map.
type blocked struct{ single, ranges map[string]string }

func newFake(osds int) *fakeCluster {
	f := &fakeCluster{epoch: 10, single: map[string]string{}, ranges: map[string]string{}, watchers: map[volume.ID][]Watcher{}}
	for range osds {
		f.osds = append(f.osds, &fakeOSD{newest: 10})
	}
	return f
}

func (f *fakeCluster) setFault(fault func(call string) (func() error, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

func (f *fakeCluster) call(ctx context.Context, name string, fn func() ([]byte, error)) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var after func() error
	if f.fault != nil {
		var err error
		if after, err = f.fault(name); err != nil {
			return nil, err
		}
	}
	out, err := fn()
	if after != nil {
		if err := after(); err != nil {
			return nil, err
		}
	}
	return out, err
}

func (f *fakeCluster) MonCommand(ctx context.Context, cmd []byte) ([]byte, error) {
	var c struct {
		Prefix, Range, Blocklistop, Addr string
		PGID                             string
		Expire                           json.RawMessage
	}
	if err := json.Unmarshal(cmd, &c); err != nil {
		return nil, err
	}
	switch c.Prefix {
	case "osd dump":
		return f.call(ctx, "dump", f.dump)
	case "osd blocklist":
		return f.call(ctx, c.Blocklistop+" "+c.Addr, func() ([]byte, error) {
			return nil, f.change(c.Range == "range", c.Blocklistop, c.Addr, string(c.Expire))
		})
	}
	if c.Prefix == "pg map" {
		return f.call(ctx, "map "+c.PGID, func() ([]byte, error) {
			if f.pg(c.PGID).unserved {
				return []byte(`{"acting":[]}`), nil
			}
			return []byte(`{"acting":[0]}`), nil
		})
	}
	return nil, fmt.Errorf("unknown command %s", cmd)
}

func (f *fakeCluster) pg(id string) *fakePG {
	n, _ := strings.CutPrefix(id, "2.")
	return &f.pgs[n[0]-'0']
}

func (f *fakeCluster) PGCommand(ctx context.Context, id string, _ []byte) ([]byte, error) {
	return f.call(ctx, "pg "+id, func() ([]byte, error) {
		switch p := f.pg(id); {
		case p.unserved:
			return nil, errs.Errorf(errs.Unavailable, "no answer")
		case p.lag > 0:
			p.lag--
			return []byte(`{"epoch":10}`), nil
		}
		return fmt.Appendf(nil, `{"epoch":%d}`, f.epoch), nil
	})
}

func (f *fakeCluster) change(ranged bool, op, addr, expire string) error {
	list, key := f.single, addr
	switch {
	case ranged && f.ranges == nil:
		return errs.Errorf(errs.Invalid, "bad field range")
	case ranged:
		b, err := netip.ParsePrefix(addr)
		if err != nil || b.Bits() == 0 {
			return errs.Errorf(errs.Invalid, "%s does not parse as a CIDR range", addr)
		}
		list, key = f.ranges, fmt.Sprintf("cidr:%s/%d", netip.AddrPortFrom(b.Addr(), 0), b.Bits())
	case !strings.Contains(addr, "/"):
		key = netip.AddrPortFrom(netip.MustParseAddr(addr), 0).String() + "/0"
	}
	switch op {
	case "add":
		seconds, err := time.ParseDuration(expire + "s")
		if err != nil || !strings.Contains(expire, ".") {
			return errs.Errorf(errs.Invalid, "bad or missing field 'expire'")
		}
		list[key] = time.Now().Add(seconds).UTC().Format("2006-01-02T15:04:05.000000-0700")
	case "rm":
		if _, exists := list[key]; !exists {
			return nil
		}
		delete(list, key)
	}
	f.changes = append(f.changes, op+" "+addr)
	f.commit()
	return nil
}

// commit makes a map, which OSDs without lag get at once.
func (f *fakeCluster) commit() {
	f.epoch++
	for _, o := range f.osds {
		if !o.down && o.lag == 0 {
			f.update(o)
		}
	}
}

func (f *fakeCluster) update(o *fakeOSD) {
	o.newest, o.enforced = f.epoch, blocked{maps.Clone(f.single), maps.Clone(f.ranges)}
}

func (f *fakeCluster) dump() ([]byte, error) {
	type osd struct {
		OSD int `json:"osd"`
		Up  int `json:"up"`
	}
	list := []osd{}
	for i, o := range f.osds {
		up := 1
		if o.down {
			up = 0
		}
		list = append(list, osd{i, up})
	}
	pools := []map[string]any{
		{"pool": 1, "pg_num": 32, "application_metadata": map[string]any{"cephfs": map[string]any{"metadata": "files"}}},
		{"pool": 2, "pg_num": len(f.pgs), "application_metadata": map[string]any{"rbd": map[string]any{}}},
	}
	dump := map[string]any{"epoch": f.epoch, "osds": list, "pools": pools, "blocklist": f.single}
	if f.ranges != nil {
		dump["range_blocklist"] = f.ranges
	}
	return json.Marshal(dump)
}

func (f *fakeCluster) OSDCommand(ctx context.Context, id int, _ []byte) ([]byte, error) {
	return f.call(ctx, fmt.Sprint("osd.", id), func() ([]byte, error) {
		o := f.osds[id]
		switch {
		case o.denied:
			return nil, errs.Errorf(errs.Denied, "access denied")
		case o.down:
			return nil, errs.Errorf(errs.Unavailable, "no such OSD")
		case o.lag > 0:
			o.lag--
		}
		if o.lag == 0 {
			defer f.update(o)
		}
		format := `{"whoami":%d,"newest_map":%d}`
		if id%2 == 1 { // of Ceph 20
			format = `{"whoami":%d,"newest_map":"%d"}`
		}
		return fmt.Appendf(nil, format, id, o.newest), nil
	})
}

func (f *fakeCluster) WaitForLatestOSDMap(ctx context.Context) error {
	_, err := f.call(ctx, "wait", func() ([]byte, error) { return nil, nil })
	return err
}

func (f *fakeCluster) Watchers(ctx context.Context, id volume.ID) (list []Watcher, err error) {
	_, err = f.call(ctx, "watchers "+string(id), func() ([]byte, error) {
		watchers, exists := f.watchers[id]
		if !exists {
			return nil, errs.Errorf(errs.NotFound, "no volume %s", id)
		}
		list = watchers
		return nil, nil
	})
	return list, err
}

// accepts returns the number of OSDs, of those that are up, that accept a
// request of the client.
func (f *fakeCluster) accepts(addr string, nonce uint32) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.osds {
		if !o.down && !o.enforced.has(netip.MustParseAddr(addr), nonce) {
			n++
		}
	}
	return n
}

func (b blocked) has(a netip.Addr, nonce uint32) bool {
	host := netip.AddrPortFrom(a, 0).String()
	if _, all := b.single[host+"/0"]; all {
		return true
	}
	if _, one := b.single[fmt.Sprintf("%s/%d", host, nonce)]; one {
		return true
	}
	for text := range b.ranges {
		if e, ok := parseRangeEntry(text); ok && e.block.Masked().Contains(a) {
			return true
		}
	}
	return false
}
