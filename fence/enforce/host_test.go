package enforce

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

type filter struct{ blocks []netip.Prefix }

func (f *filter) Apply(_ context.Context, blocks []netip.Prefix) error {
	f.blocks = blocks
	return nil
}

func (f *filter) Held(context.Context) ([]netip.Prefix, error) { return f.blocks, nil }

var errEnd = errors.New("of the sockets")

type sockets struct {
	asked    []netip.Prefix
	coverage volume.Coverage
}

func (s *sockets) Sessions(_ context.Context, blocks []netip.Prefix) ([]volume.Session, error) {
	s.asked = blocks
	return []volume.Session{{ID: "1"}}, nil
}

func (s *sockets) End(context.Context, []volume.Session) error { return errEnd }

func (s *sockets) Coverage(context.Context, []netip.Prefix) (volume.Coverage, error) {
	return s.coverage, nil
}

func TestHost(t *testing.T) {
	f, s := &filter{}, &sockets{}
	fencer := Host(f, s)
	block := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	set := volume.FenceSet{Blocks: block, Clients: []volume.Client{{Node: "a"}}}
	testkit.Must(t, fencer.Apply(t.Context(), set))
	held, err := fencer.Held(t.Context())
	if diff := cmp.Diff(block, held, cmpopts.EquateComparable(netip.Prefix{})); diff != "" || err != nil {
		t.Errorf("%v, want-, got+:\n%s", err, diff)
	}
	found, err := fencer.Sessions(t.Context(), block)
	if err != nil || len(found) != 1 || len(s.asked) != 1 {
		t.Errorf("%v, %v", found, err)
	}
	if err := fencer.End(t.Context(), found); !errors.Is(err, errEnd) {
		t.Error(err)
	}
}
