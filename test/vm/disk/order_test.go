package disk

import (
	"errors"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

func TestPowerLossAtTrigger(t *testing.T) {
	trim := nbd.Request{Command: nbd.Trim, Length: blockSize}
	script := []nbd.Request{write(0, 'a'), flush, write(0, 'b'), write(1, 'c'), flush, trim, flush, write(2, 'd'), flush}
	for _, test := range []struct {
		order    Trigger
		survival Survival
		answered int // of the script
		want     string
	}{
		{Trigger{Write, 1, OnArrival}, SurviveAll, 0, "..."},
		{Trigger{Write, 1, BeforeAnswer}, SurviveAll, 0, "a.."},
		{Trigger{Write, 3, AfterAnswer}, SurviveAll, 4, "bc."},
		{Trigger{Write, 3, AfterAnswer}, SurviveNone, 4, "a.."},
		{Trigger{Flush, 1, OnArrival}, SurviveNone, 1, "..."},
		{Trigger{Flush, 2, OnArrival}, SurviveNone, 4, "a.."},
		{Trigger{Flush, 2, BeforeAnswer}, SurviveNone, 4, "bc."},
		{Trigger{Flush, 2, AfterAnswer}, SurviveNone, 5, "bc."},
		{Trigger{Discard, 1, OnArrival}, SurviveAll, 5, "bc."},
		{Trigger{Discard, 1, AfterAnswer}, SurviveAll, 6, ".c."},
	} {
		t.Run(test.order.String()+", "+test.survival.String(), func(t *testing.T) {
			d := open(t, Spec{Survival: test.survival})
			testkit.Must(t, d.LosePowerAt(test.order))
			g := attach(t, d)
			gone := d.Gone()
			for _, r := range script[:test.answered] {
				g.do(r)
			}
			g.send(script[test.answered]) // not answered
			<-gone
			testkit.Must(t, d.PowerOn())
			if _, a, err := g.c.Receive(); err == nil {
				t.Errorf("the disk answered %v after the power loss", a)
			}
			if got := attach(t, d).first(3); got != test.want {
				t.Errorf("after the power loss the disk reads %s, want %s", got, test.want)
			}
			if s := d.Stats(); s.PowerLosses != 1 || s.Cause != test.order.String() {
				t.Errorf("got %d power losses, the last with cause %q", s.PowerLosses, s.Cause)
			}
		})
	}
}

func TestInvalidTriggerIsRejected(t *testing.T) {
	d := open(t, Spec{})
	for _, o := range []Trigger{{Write, 0, OnArrival}, {Event(9), 1, OnArrival}, {Flush, 1, Moment(-1)}} {
		if err := d.LosePowerAt(o); err == nil {
			t.Errorf("trigger %v was accepted", o)
		}
	}
}

func TestFaultsReturnEIOAndChangeNothing(t *testing.T) {
	d := open(t, Spec{})
	g := attach(t, d)
	read := func(block int) nbd.Request {
		return nbd.Request{Command: nbd.Read, Offset: uint64(block) * blockSize, Length: blockSize}
	}
	fails := func(r nbd.Request, want bool) {
		t.Helper()
		if _, err := g.c.Do(r); errors.Is(err, nbd.EIO) != want || !want && err != nil {
			t.Errorf("%v at %d: got %v; want an I/O error: %v", r.Command, r.Offset, err, want)
		}
	}
	g.do(write(1, 'a'))
	clearWrites := d.Fail(Fault{Writes: true, From: blockSize, To: 2 * blockSize})
	fails(write(0, 'z'), false)
	fails(write(1, 'z'), true)
	fails(write(2, 'z'), false)
	fails(nbd.Request{Command: nbd.WriteZeroes, Length: 3 * blockSize}, true)
	fails(nbd.Request{Command: nbd.Trim, Offset: 2*blockSize - 512, Length: 512}, true)
	fails(read(1), false)
	fails(flush, false)
	clearAll := d.Fail(Fault{Reads: true, Flushes: true, From: blockSize})
	fails(read(0), false)
	fails(read(1), true)
	fails(read(200), true)
	fails(flush, true)
	clearAll()
	clearAll()
	fails(flush, false)
	fails(write(1, 'z'), true)
	cyclePower(t, d)
	g = attach(t, d)
	fails(write(1, 'z'), true)
	clearWrites()
	if got := g.first(3); got != "zaz" {
		t.Errorf("the disk reads %s, want zaz: a failed request changed data", got)
	}
	fails(write(1, 'b'), false)
	if s := d.Stats(); s.Failed != 8 {
		t.Errorf("got %d failed requests, want 8", s.Failed)
	}
}
