package fence

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/fence/serve"
	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

// BenchmarkFenceBlocks measures calls with 1, 1,000 and 10,000 blocks without
// sessions, and the start of a service with that many records.
func BenchmarkFenceBlocks(b *testing.B) {
	for _, count := range []int{1, 1_000, 10_000} {
		s := newSite(b)
		service := s.serve()
		blocks := manyBlocks(count)
		var unfence time.Duration
		b.Run(fmt.Sprintf("fence=%d", count), func(b *testing.B) {
			for b.Loop() {
				s.fence(service, blocks)
				b.StopTimer()
				begun := time.Now()
				s.unfence(service, blocks...)
				unfence += time.Since(begun)
				b.StartTimer()
			}
			b.ReportMetric(float64(unfence.Milliseconds())/float64(b.N), "ms-unfence")
		})
		s.fence(service, blocks)
		b.Run(fmt.Sprintf("repeat=%d", count), func(b *testing.B) {
			for b.Loop() {
				s.fence(service, blocks)
			}
		})
		// From the start of the process until it serves, which is after the
		// fences are applied: if the packet filter was flushed meanwhile, it is
		// open for this time.
		b.Run(fmt.Sprintf("start-over-empty-filter=%d", count), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				testkit.Must(b, errors.Join(service.Kill(), serve.KillHolder(b.Context(), s.machine)))
				s.machine.MustRun(b, "nft", "flush", "ruleset")
				b.StartTimer()
				service = s.serve()
			}
		})
	}
}

// BenchmarkFenceLastByte measures how long after the call the last write of a
// client that writes as fast as it can is accepted, and when the call returns.
func BenchmarkFenceLastByte(b *testing.B) {
	s := newSite(b)
	records, service, victim := s.records(), s.serve(), s.host(1, 7)
	var last, answer time.Duration
	b.Run("call", func(b *testing.B) {
		last, answer = 0, 0
		for b.Loop() {
			b.StopTimer()
			conn := s.dial(victim, victim.v4, recordPort)
			id := s.serial.Add(1)
			w := storage.NewWriter(id, storage.RecordSession(id, conn), 20*time.Microsecond)
			s.await(500, w)
			b.StartTimer()
			begun := time.Now()
			when := s.fence(service, []string{victimBlock}, w)
			b.StopTimer()
			answer += when.at.Sub(begun)
			s.nothingSince(when, records)
			all := s.whole(records)[id]
			last += all[len(all)-1].At.Sub(begun)
			w.Close()
			s.unfence(service, victimBlock)
			b.StartTimer()
		}
		b.ReportMetric(float64(last.Microseconds())/1000/float64(b.N), "ms-last-byte")
		b.ReportMetric(float64(answer.Microseconds())/1000/float64(b.N), "ms-answer")
	})
}

// BenchmarkFenceSessions measures a call that ends 3,000 sessions.
func BenchmarkFenceSessions(b *testing.B) {
	const count = 3000
	s := newSite(b)
	s.records()
	service, victim := s.serve(), s.host(1, 7)
	b.Run(fmt.Sprintf("sessions=%d", count), func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			conns := make([]net.Conn, count)
			for i := range conns {
				conns[i] = s.dial(victim, victim.v4, recordPort)
				testkit.Must(b, storage.RecordSession(1, conns[i]).Send(1))
			}
			b.StartTimer()
			s.fence(service, []string{victimBlock})
			b.StopTimer()
			for _, c := range conns {
				_ = c.Close()
			}
			s.unfence(service, victimBlock)
			b.StartTimer()
		}
	})
}

// BenchmarkFenceNeighbours prints the write latency of a client beside the
// fenced ones, idle and while 1,000 blocks are repeatedly fenced and unfenced.
func BenchmarkFenceNeighbours(b *testing.B) {
	s := newSite(b)
	records, service, neighbour := s.records(), s.serve(), s.host(2, 5)
	n := s.writer(neighbour, neighbour.v4)
	blocks := manyBlocks(1_000)
	report := func(b *testing.B) {
		waits := n.Waits()
		if len(waits) == 0 {
			b.Fatal("the neighbour wrote nothing")
		}
		at := func(share float64) float64 {
			return float64(waits[int(share*float64(len(waits)-1))].Microseconds()) / 1000
		}
		b.ReportMetric(at(0.5), "ms-median")
		b.ReportMetric(at(0.99), "ms-99%")
		b.ReportMetric(at(1), "ms-longest")
	}
	b.Run("at-rest", func(b *testing.B) {
		n.Waits()
		for b.Loop() {
			s.await(100, n)
		}
		report(b)
	})
	b.Run("during-fences", func(b *testing.B) {
		n.Waits()
		for b.Loop() {
			s.fence(service, blocks)
			s.unfence(service, blocks...)
		}
		report(b)
	})
	s.unharmed(records, n)
}

// BenchmarkFenceWindow measures how long the storage is open when both
// processes of a fence are killed and another program flushes the packet filter
// at that moment: a client tries to connect all the time, and a new service is
// started at once, as by a supervisor.
func BenchmarkFenceWindow(b *testing.B) {
	s := newSite(b)
	s.records()
	service, victim := s.serve(), s.host(1, 7)
	var open time.Duration
	b.Run("killed-and-flushed", func(b *testing.B) {
		open = 0
		for b.Loop() {
			s.fence(service, []string{victimBlock})
			testkit.Must(b, errors.Join(service.Kill(), serve.KillHolder(b.Context(), s.machine)))
			s.machine.MustRun(b, "nft", "flush", "ruleset")
			begun := time.Now()
			last := begun
			service = testkit.Value(serve.Begin(s.machine, cleat, nil, "--ports", "4420,3260,10809"))(b)
			for s.begins(victim) {
				last = time.Now()
			}
			open += last.Sub(begun)
			testkit.Must(b, service.Ready(b.Context()))
			b.Cleanup(func() { _ = service.Close() })
		}
		b.ReportMetric(float64(open.Microseconds())/1000/float64(b.N), "ms-open")
	})
}

// begins reports whether a session of a client can be opened.
func (s *site) begins(h *host) bool {
	ctx, cancel := context.WithTimeout(s.t.Context(), 100*time.Millisecond)
	defer cancel()
	conn, err := h.Dial(ctx, serverOf(h.v4, recordPort), h.v4)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}
