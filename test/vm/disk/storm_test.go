package disk

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// Clients write and flush concurrently, each in its own region. Flushed data
// must survive power losses.
func TestConcurrentClientsKeepFlushedWrites(t *testing.T) {
	const guests, powerLosses = 4, 25
	d := open(t, Spec{Survival: SurviveNone, Cache: 256 << 10, Seed: 1})
	random := rand.New(rand.NewPCG(1, 2))
	var sure [guests]uint64 // last flushed number of each client
	for round := range powerLosses {
		o := Trigger{Event: Event(random.IntN(2)), N: 1 + random.IntN(60), Moment: Moment(random.IntN(3))}
		var attached []guest
		for range guests {
			attached = append(attached, attach(t, d))
		}
		if round%5 != 0 { // otherwise at a random time
			testkit.Must(t, d.LosePowerAt(o))
		}
		var running sync.WaitGroup
		for n, g := range attached {
			running.Go(func() { sure[n] = countUp(g.c, n, sure[n]) })
		}
		if round%5 == 0 {
			testkit.Must(t, d.LosePower())
		}
		<-d.Gone()
		testkit.Must(t, d.PowerOn()) // closes the connections
		running.Wait()
		g := attach(t, d)
		for n, want := range sure {
			for block := range uint64(3) {
				data := g.do(nbd.Request{Command: nbd.Read, Offset: place(n, block), Length: blockSize})
				if got := binary.BigEndian.Uint64(data); got < want {
					t.Errorf("power loss %d (%v): block %d of guest %d has number %d, but %d was flushed", round, d.Stats().Cause, block, n, got, want)
				}
			}
		}
		if err := g.c.Close(); err != nil {
			t.Error(err)
		}
	}
	if s := d.Stats(); s.PowerLosses != powerLosses || s.Lost.Lost == 0 {
		t.Errorf("the power losses lost nothing: %v", s)
	}
}

func place(guest int, block uint64) uint64 { return (uint64(guest)*8 + block) * blockSize }

// countUp writes rising numbers to three blocks and flushes, until the disk
// closes the connection. It returns the last acknowledged number.
func countUp(c *nbd.Client, guest int, number uint64) uint64 {
	for {
		next := number + 1
		data := binary.BigEndian.AppendUint64(nil, next)
		data = append(data, make([]byte, blockSize-len(data))...)
		for block := range uint64(3) { // concurrent, answered before the flush is sent
			r := nbd.Request{Command: nbd.Write, Offset: place(guest, block), Data: data, FUA: block == 1}
			if _, err := c.Send(r); err != nil {
				return number
			}
		}
		for range 3 {
			if _, a, err := c.Receive(); err != nil || a.Error != nbd.OK {
				return number
			}
		}
		if _, err := c.Do(nbd.Request{Command: nbd.Flush}); err != nil {
			return number
		}
		number = next
	}
}

func ExampleStats() {
	s := Stats{Writes: 3, WrittenBytes: 12288, Flushes: 1}
	s.losePower(Loss{Writes: 2, Torn: 1, Blocks: 5, Lost: 3, Stale: 1}, Trigger{Flush, 2, OnArrival}.String())
	fmt.Println(s)
	// Output:
	// 0 reads (0 bytes), 3 writes (12288 bytes), 0 zeroings, 0 discards, 0 with FUA, 1 flushes, 0 failed; 0 bytes unflushed, 0 blocks evicted; 1 power losses: 2 unflushed writes (1 torn) of 5 blocks (3 lost, 1 stale); the last (flush 2, on arrival): 2 unflushed writes (1 torn) of 5 blocks (3 lost, 1 stale)
}
