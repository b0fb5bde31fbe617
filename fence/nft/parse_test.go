package nft

import (
	"encoding/json"
	"testing"

	"go4.org/netipx"

	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/linux/nft"
)

// An accepted greeting has a version and survives a round trip.
func FuzzGreeting(f *testing.F) {
	for _, seed := range []string{`{"protocol":1,"pid":7,"table":"t"}`, `{"protocol":2,"pid":7,"busy":9,"more":[]}`, `{}`, `[]`, "ready", `{"protocol":-1}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		g, err := parseGreeting(line)
		if err != nil {
			return
		}
		said, err := json.Marshal(g)
		if err != nil || g.Protocol < 1 {
			t.Fatalf("%q is %+v (%v)", line, g, err)
		}
		if again, err := parseGreeting(said); err != nil || again != g {
			t.Errorf("%+v becomes %+v (%v) after a round trip", g, again, err)
		}
	})
}

func FuzzIntervals(f *testing.F) {
	f.Add([]byte{0, 10, 0, 0, 0, 1, 10, 0, 0, 1})
	f.Add([]byte{1, 0, 0, 0, 0, 0, 255, 255, 255, 255})
	f.Add([]byte{0, 1, 2, 3, 4, 0, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, data []byte) {
		var all []nft.Element
		for ; len(data) >= 5; data = data[5:] {
			all = append(all, nft.Element{End: data[0]&1 != 0, Key: data[1:5]})
		}
		set, err := intervalSet(all)
		if err != nil {
			return
		}
		v4, v6 := elements(set)
		again, err := intervalSet(v4)
		if err != nil || len(v6) != 0 || !equal(set.Prefixes(), again.Prefixes()) {
			t.Errorf("%v becomes %v (%v) after a round trip", set.Prefixes(), again.Prefixes(), err)
		}
	})
}

func intervalSet(all []nft.Element) (*netipx.IPSet, error) {
	blocks, err := parseIntervals(all, 4)
	if err != nil {
		return nil, err
	}
	return cidr.Set(blocks)
}
