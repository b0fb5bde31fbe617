package dpubench

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	most   = 1000 // devices present
	spares = 64   // further subsystems, for devices that are created and deleted
)

// BenchmarkDPU prints the figures of docs/performance.md. Run it with
// -benchtime 1x: the number of calls is fixed here.
func BenchmarkDPU(b *testing.B) {
	s := newSite(b)
	s.double(most + spares)
	ready := s.start() // not in a sub-benchmark: the others need it even if it is not selected
	b.Run("idle", func(b *testing.B) {
		report(b, metrics{"start-ms": ms(ready), "MiB-resident": testkit.Resident(s, s.plugin.Process.Pid)})
	})
	have := 0
	for _, want := range []int{1, 100, most} {
		s.present(b.Context(), have, want)
		have = want
		b.Run(fmt.Sprintf("present=%d", want), func(b *testing.B) { s.calls(b, want) })
	}
	b.Run(fmt.Sprintf("start/present=%d", most), func(b *testing.B) {
		s.stop()
		ready := s.start()
		report(b, metrics{"start-ms": ms(ready), "MiB-resident": testkit.Resident(s, s.plugin.Process.Pid)})
	})
	b.Run(fmt.Sprintf("recovery/present=%d", most), func(b *testing.B) { s.recovery(b) })
}

// calls measures each call with 1 and 32 clients, and the same SNAP requests
// sent by a bare client.
func (s *site) calls(b *testing.B, present int) {
	names := s.names(b)
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) {
			callers, bare := s.callers(n), s.bare(b, n)
			const gets, pairs, rounds = 2000, 320, 5
			name := func(i int) (volume, device string) { volume = volumeID(i % present); return volume, names[volume] }
			b.Run("get", func(b *testing.B) {
				var plugin, snap timing
				for range rounds { // alternately: the machine has other load
					before := s.processor()
					plugin.add(timed(b, callers, gets/rounds, func(c caller, i int) error {
						volume, device := name(i)
						_, err := c.Get(b.Context(), volume, device)
						return err
					}))
					plugin.processor += s.processor() - before
					snap.add(timed(b, bare, gets/rounds, func(c bareCaller, i int) error {
						_, device := name(i)
						return c.get(b.Context(), device)
					}))
				}
				compare(b, plugin, snap)
			})
			b.Run("list-100", func(b *testing.B) { // without SNAP
				report(b, timed(b, callers, gets, func(c caller, _ int) error {
					_, _, err := c.List(b.Context(), 100, "")
					return err
				}).metrics())
			})
			b.Run("create", func(b *testing.B) {
				var create, remove, bareCreate, bareRemove timing
				for range rounds {
					before := s.processor()
					created, removed := comeAndGo(b, callers, pairs/rounds, func(c caller) (string, error) { return c.Create(b.Context(), namespace(c.own, false)) }, s.remove(b))
					created.processor = s.processor() - before // of pairs, as is the rate
					create.add(created)
					remove.add(removed)
					created, removed = comeAndGo(b, bare, pairs/rounds, func(c bareCaller) (string, error) { return c.create(b.Context()) }, bareRemoval(b))
					bareCreate.add(created)
					bareRemove.add(removed)
				}
				b.Run("create", func(b *testing.B) { compare(b, create, bareCreate) })
				b.Run("delete", func(b *testing.B) { compare(b, remove, bareRemove) })
			})
			// For a file all bdevs are listed, to check that no other bdev uses
			// it.
			b.Run("create-file", func(b *testing.B) {
				for _, c := range callers {
					testkit.Must(s, os.WriteFile(filepath.Join(s.dir, "pool", volumeID(c.own)), make([]byte, 1<<20), 0o600))
				}
				create, _ := comeAndGo(b, callers, pairs/5, func(c caller) (string, error) { return c.Create(b.Context(), file(c.own)) }, s.remove(b))
				report(b, create.metrics())
			})
		})
	}
}

// caller is a client with its own volume, so that the number of devices stays
// the same while it creates and deletes one.
type caller struct {
	*client.Client
	own int
}

func (s *site) callers(n int) (all []caller) {
	for i, c := range s.clients(n) {
		all = append(all, caller{c, most + i})
	}
	return all
}

func (s *site) remove(b *testing.B) func(caller, string) error {
	return func(c caller, name string) error { return c.Delete(b.Context(), volumeID(c.own), name) }
}

func bareRemoval(b *testing.B) func(bareCaller, string) error {
	return func(c bareCaller, name string) error { return c.remove(b.Context(), name) }
}

// comeAndGo measures alternate creates and deletes.
func comeAndGo[C any](b *testing.B, callers []C, pairs int, create func(C) (string, error), remove func(C, string) error) (created, removed timing) {
	created.took, removed.took = make([]time.Duration, pairs), make([]time.Duration, pairs)
	began := time.Now()
	each(b, callers, pairs, func(c C, i int) error {
		start := time.Now()
		name, err := create(c)
		if err != nil {
			return err
		}
		between := time.Now()
		err = remove(c, name)
		created.took[i], removed.took[i] = between.Sub(start), time.Since(between)
		return err
	})
	created.elapsed = time.Since(began) // of both: a rate of pairs
	removed.elapsed = created.elapsed
	return created, removed
}

// recovery measures the time until all devices are back after a SNAP restart,
// when 32 callers repeat CreateDevice, as the node driver's workers would.
func (s *site) recovery(b *testing.B) {
	testkit.Value(io.WriteString(s.orders, "restart\n"))(b)
	for deadline := time.Now().Add(bound); ; { // until the plugin sees that they are gone
		if _, err := s.client.Get(b.Context(), volumeID(0), ""); err != nil {
			break
		}
		if time.Now().After(deadline) {
			b.Fatal("GetDevice still succeeds after a SNAP restart")
		}
	}
	took := s.present(b.Context(), 0, most)
	for i := range most {
		testkit.Value(s.client.Get(b.Context(), volumeID(i), ""))(b)
	}
	report(b, metrics{"all-back-ms": ms(took), "MiB-resident": testkit.Resident(s, s.plugin.Process.Pid)})
}

// names returns the devices by volume.
func (s *site) names(b *testing.B) map[string]string {
	all := map[string]string{}
	for token := ""; ; {
		page, next, err := s.client.List(b.Context(), 0, token)
		testkit.Must(b, err)
		for _, e := range page {
			all[e.Volume] = e.Device
		}
		if token = next; token == "" {
			return all
		}
	}
}
