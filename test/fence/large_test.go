package fence

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

// manyBlocks returns n blocks outside of the rig's network that cannot be
// merged.
func manyBlocks(n int) []string {
	blocks := make([]string, n)
	for i := range blocks {
		if i%4 == 3 {
			blocks[i] = fmt.Sprintf("fd00:%x:%x::/48", i>>8, 2*(i&0xff))
		} else {
			blocks[i] = fmt.Sprintf("100.%d.%d.%d/31", i>>13, i>>6&0x7f, i<<2&0xff)
		}
	}
	return blocks
}

// Ten thousand blocks in one request, including the victim's.
func TestTenThousandBlocks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service := s.records(), s.serve()
	victim, neighbour := s.host(1, 7), s.host(2, 5)
	w, n := s.writer(victim, victim.v6), s.writer(neighbour, neighbour.v4)
	s.await(20, w, n)
	blocks := append(manyBlocks(9_999), fmt.Sprintf("%s/128", victim.v6))
	when := s.fence(service, blocks, w)
	s.refused(victim, victim.v6, recordPort)
	s.unharmed(records, n)
	listed, err := service.List(t.Context(), nil)
	slices.Sort(listed)
	want := slices.Sorted(slices.Values(blocks))
	if err != nil || !slices.Equal(listed, want) {
		t.Errorf("%d blocks are listed, %v", len(listed), err)
	}
	testkit.Must(t, service.Kill())
	service = s.serve()
	if listed, err := service.List(t.Context(), nil); err != nil || len(listed) != len(blocks) {
		t.Errorf("after a restart %d blocks are listed, %v", len(listed), err)
	}
	s.refused(victim, victim.v6, recordPort)
	s.unfence(service, blocks...)
	if err := s.listed(service); err != nil {
		t.Error(err)
	}
	s.await(20, s.writer(victim, victim.v6))
	s.unharmed(records, n)
	s.nothingSince(when, records)
}

// Three thousand sessions of one client, all in use.
func TestThreeThousandSessions(t *testing.T) {
	t.Parallel()
	const count = 3000
	s := newSite(t)
	records, service := s.records(), s.serve()
	victim, neighbour := s.host(1, 7), s.host(2, 5)
	n := s.writer(neighbour, neighbour.v4)
	conns := make([]net.Conn, count)
	for i := range conns {
		from := victim.v4
		if i%5 == 4 {
			from = victim.v6
		}
		conns[i] = s.dial(victim, from, recordPort)
		t.Cleanup(func() { _ = conns[i].Close() })
	}
	first := s.serial.Add(count) - count
	for i, c := range conns {
		session := storage.RecordSession(first+uint64(i)+1, c)
		for number := range uint64(3) {
			testkit.Must(t, session.Send(number+1))
		}
	}
	before := time.Now()
	s.fence(service, []string{victimBlock, fmt.Sprintf("%s/128", victim.v6)})
	answered := time.Now()
	t.Logf("%d sessions ended in %s", count, answered.Sub(before).Round(time.Millisecond))
	var deadline = time.Now().Add(patience)
	for i, c := range conns {
		_ = c.SetReadDeadline(deadline)
		var acks [64]byte
		for err := error(nil); err == nil; {
			if _, err = c.Read(acks[:]); err != nil && time.Now().After(deadline) {
				t.Fatalf("session %d still works: %v", i, err)
			}
		}
	}
	s.unharmed(records, n)
	s.unfence(service, victimBlock, fmt.Sprintf("%s/128", victim.v6))
	s.await(20, s.writer(victim, victim.v4))
	for id, all := range s.whole(records) {
		if last := all[len(all)-1]; id > first && id <= first+count && last.At.After(answered) {
			t.Errorf("session %d: a record arrived %s after the answer", id-first, last.At.Sub(answered))
		}
	}
}

// One block more than a request is allowed to name.
func TestTooManyBlocks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	service := s.serve()
	var blocks []string
	for a := netip.MustParseAddr("100.64.0.0"); len(blocks) < 65_537; a = a.Next().Next() {
		blocks = append(blocks, a.String()+"/32")
	}
	s.code(service.Fence(t.Context(), nil, blocks...), codes.InvalidArgument)
	if err := s.listed(service); err != nil {
		t.Error(err)
	}
}
