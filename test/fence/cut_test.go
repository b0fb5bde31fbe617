package fence

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

// One block is fenced: its clients' writes stop for good, other clients
// continue, and after unfencing new sessions work.
func TestFenceStopsOnlyTheBlock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service := s.records(), s.serve()
	other := testkit.Value(storage.StartRecords(s.machine, otherPort))(t)
	hosts := []*host{s.host(1, 7), s.host(1, 8), s.host(2, 5)}
	for _, block := range []string{"10.9.1.7/32", "10.9.1.0/24", "fd09:0:0:1::7/128", "fd09:0:0:1::/64"} {
		t.Run(block, func(t *testing.T) {
			s := *s
			s.t = t
			var victims, neighbours []*storage.Writer
			fenced := map[netip.Addr]*host{}
			for _, h := range hosts {
				for _, from := range []netip.Addr{h.v4, h.v6} {
					w := s.writer(h, from)
					if netip.MustParsePrefix(block).Contains(from) {
						victims, fenced[from] = append(victims, w), h
					} else {
						neighbours = append(neighbours, w)
					}
				}
			}
			s.await(20, slices.Concat(victims, neighbours)...)
			when := s.fence(service, []string{block}, victims...)
			s.unharmed(records, neighbours...)
			for from, h := range fenced {
				s.refused(h, from, recordPort)
				_ = s.dial(h, from, otherPort).Close() // only storage ports are fenced
			}
			if blocks, err := service.List(t.Context(), nil); err != nil || !slices.Equal(blocks, []string{block}) {
				t.Errorf("List = %v, %v", blocks, err)
			}
			s.fence(service, []string{block}) // again
			s.nothingSince(when, records)
			s.unfence(service, block)
			s.unfence(service, block)
			for from, h := range fenced {
				s.await(20, s.writer(h, from))
			}
			s.unharmed(records, neighbours...)
			s.nothingSince(when, records)
			for _, w := range neighbours {
				if w.Err() != nil {
					t.Errorf("neighbour %d: %v", w.ID, w.Err())
				}
			}
		})
	}
	_ = other
}

// All traffic is fenced, on every port.
func TestAllPorts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	other := testkit.Value(storage.StartRecords(s.machine, otherPort))(t)
	service, victim, neighbour := s.serve("--all-ports"), s.host(1, 7), s.host(2, 5)
	conn := s.dial(victim, victim.v4, otherPort)
	w := storage.NewWriter(1, storage.RecordSession(1, conn), pace)
	t.Cleanup(w.Close)
	s.await(20, w)
	when := s.fence(service, []string{"10.9.1.7/32"}, w)
	s.refused(victim, victim.v4, otherPort)
	_ = s.dial(neighbour, neighbour.v4, otherPort).Close()
	s.unfence(service, "10.9.1.7/32")
	_ = s.dial(victim, victim.v4, otherPort).Close()
	s.nothingSince(when, other)
}

// A port redirected to that of the storage server does not bypass the fence.
func TestRedirectedPort(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service, victim := s.records(), s.serve(), s.host(1, 7)
	const front = 9999
	for _, line := range []string{
		"add table ip redirected", "add chain ip redirected before { type nat hook prerouting priority dstnat; }",
		fmt.Sprintf("add rule ip redirected before tcp dport %d redirect to :%d", front, recordPort),
	} {
		s.machine.MustRun(t, "nft", line)
	}
	conn := s.dial(victim, victim.v4, front)
	w := storage.NewWriter(100, storage.RecordSession(100, conn), pace)
	t.Cleanup(w.Close)
	s.await(20, w)
	when := s.fence(service, []string{victimBlock}, w)
	s.refused(victim, victim.v4, front)
	s.refused(victim, victim.v4, recordPort)
	s.unfence(service, victimBlock)
	s.await(20, s.writer(victim, victim.v4))
	s.nothingSince(when, records)
}
