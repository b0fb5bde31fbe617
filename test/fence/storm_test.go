package fence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

// Many clients reconnect as soon as they lose a session, as initiators do: no
// session is missed between the inspection and the answer.
func TestStormOfSessions(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service := s.records(), s.serve()
	victim, neighbour := s.host(1, 7), s.host(2, 5)
	n := s.writer(neighbour, neighbour.v4)
	ctx, cancel := context.WithCancel(t.Context())
	var storm sync.WaitGroup
	var begun atomic.Uint64
	defer storm.Wait()
	defer cancel()
	for i := range 16 {
		from := victim.v4
		if i%2 == 1 {
			from = victim.v6
		}
		storm.Go(func() {
			for ctx.Err() == nil {
				short, stop := context.WithTimeout(ctx, 100*time.Millisecond)
				conn, err := victim.Dial(short, serverOf(from, recordPort), from)
				stop()
				if err != nil {
					continue
				}
				session := storage.RecordSession(s.serial.Add(1), conn)
				begun.Add(1)
				for number := uint64(1); number <= 5 && err == nil; number++ {
					err = session.Send(number)
				}
				if begun.Load()%2 == 0 { // others do not wait for the answer
					_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
					_, _ = session.Acknowledged()
				}
				_ = conn.Close()
			}
		})
	}
	victims := []string{victimBlock, fmt.Sprintf("%s/128", victim.v6)}
	for range 6 {
		before := begun.Load()
		testkit.EventuallyNil(t, "enough sessions", func() error {
			if now := begun.Load(); now < before+50 {
				return fmt.Errorf("%d sessions so far", now-before)
			}
			return nil
		})
		s.fence(service, victims)
		answered := time.Now()
		s.await(20, n)
		opens := time.Now()
		s.unfence(service, victims...)
		for id, all := range s.whole(records) {
			for _, r := range all {
				if id != n.ID && r.At.After(answered) && r.At.Before(opens) {
					t.Errorf("session %d: record %d arrived %s after the answer", id, r.Number, r.At.Sub(answered))
				}
			}
		}
	}
	s.unharmed(records, n)
}

// Many callers fence and unfence overlapping blocks at once: each finds its
// request done, whatever the others do.
func TestManyCallers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service := s.records(), s.serve()
	victim, neighbour := s.host(1, 7), s.host(2, 5)
	n := s.writer(neighbour, neighbour.v4)
	blocks := []string{victimBlock, "10.9.1.0/24", "10.9.1.0/28", "10.9.1.8/32", "fd09:0:0:1::/64", "fd09:0:0:1::7/128"}
	var callers sync.WaitGroup
	for i := range 6 {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			owner := map[string]string{"clusterID": fmt.Sprint(i)}
			call := func(do func(context.Context, map[string]string, ...string) error, block string) bool {
				for {
					err := do(t.Context(), owner, block)
					if err == nil {
						return true
					}
					if c := status.Code(err); c != codes.Aborted && c != codes.Unavailable {
						t.Errorf("caller %d: %v", i, err)
						return false
					}
				}
			}
			for range 10 {
				block := blocks[random.IntN(len(blocks))]
				if !call(service.Fence, block) {
					return
				}
				if listed, err := service.List(t.Context(), owner); err != nil || len(listed) != 1 || listed[0] != block {
					t.Errorf("caller %d, which fenced %s, lists %v, %v", i, block, listed, err)
				}
				if block == victimBlock || block == "10.9.1.0/24" || block == "10.9.1.0/28" {
					s.refused(victim, victim.v4, recordPort)
				} else if block != "10.9.1.8/32" {
					s.refused(victim, victim.v6, recordPort)
				}
				if !call(service.Unfence, block) {
					return
				}
			}
		})
	}
	callers.Wait()
	if err := s.listed(service); err != nil {
		t.Error(err)
	}
	if err := s.holds(); err == nil {
		t.Error("all callers have unfenced, and the packet filter still blocks")
	}
	s.await(20, s.writer(victim, victim.v4), s.writer(victim, victim.v6), n)
	s.unharmed(records, n)
}
