package dpu

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	clients   = 32
	perClient = 8
	steps     = 24 // of each client in a round

	// stormPatience covers the wait for an attach that a killed plugin sent,
	// which is 3 min if its end was not seen.
	stormPatience = 3*time.Minute + patience
)

// storm is many clients of one plugin, which is killed, with a SNAP process
// that restarts.
type storm struct {
	*site
	restarts atomic.Int64 // of SNAP, counted before and after each: odd during one
	calls    atomic.Int64
}

// owner is one client and its own volumes.
type owner struct {
	storm  *storm
	random *rand.Rand
	link   *client.Client
	all    []*owned
}

// owned is a volume and its acknowledged state.
type owned struct {
	volume
	device  string // acknowledged; empty: no device
	process int64  // SNAP process of the acknowledgement; odd: unknown
}

// Devices of 256 volumes, on 16 subsystems, of files and of directories, are
// created and deleted by 32 clients at once, while SNAP is restarted and the
// plugin killed in all ways in each round. After each round SNAP has exactly
// the acknowledged devices, each with its own volume's storage, and ListDevices
// agrees.
func TestStorm(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	x := &storm{site: newSite(t, spdktest.Config{Flavour: spdktest.Fork, SNAP: true, Timing: spdktest.Timing{Attach: 5 * time.Millisecond, Detach: 2 * time.Millisecond}}, raced)}
	x.patience = stormPatience
	x.start()
	for i := range 16 {
		x.target(fmt.Sprint("sub-", i), 12)
	}
	var owners []*owner
	for n := range clients {
		o := &owner{storm: x, random: rand.New(rand.NewPCG(seed, uint64(n)))}
		for i := range perClient {
			o.all = append(o.all, &owned{volume: x.stormVolume(n, i)})
		}
		owners = append(owners, o)
	}
	random := rand.New(rand.NewPCG(seed, clients))
	for _, round := range soak.Pick(1, []int{1, 2, 3}) {
		begun := time.Now()
		x.round(owners, random)
		x.compare(owners)
		if t.Failed() {
			t.FailNow()
		}
		t.Logf("round %d: %s, %d calls so far, SNAP restarted %d times", round, time.Since(begun).Round(time.Millisecond), x.calls.Load(), x.restarts.Load()/2)
	}
	for _, o := range owners {
		for _, v := range o.all {
			x.remove(v.volume, v.device)
		}
	}
	x.empty()
}

// stormVolume is the ith volume of a client: six are namespaces, of subsystems
// shared with other clients.
func (x *storm) stormVolume(client, i int) volume {
	id := fmt.Sprintf("v-%d-%d", client, i)
	switch i {
	case 6:
		return x.file(id)
	case 7:
		return x.directory(id)
	}
	n := client*6 + i
	return x.namespace(id, fmt.Sprint("sub-", n%16), n/16+1)
}

// round runs all clients, and disturbs them.
func (x *storm) round(owners []*owner, random *rand.Rand) {
	done := make(chan struct{})
	var working sync.WaitGroup
	for _, o := range owners {
		working.Go(func() {
			if err := o.work(); err != nil {
				x.t.Error(err)
			}
		})
	}
	go func() {
		working.Wait()
		close(done)
	}()
	first := random.IntN(3)
	for turn := 0; ; turn++ {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(200+random.IntN(600)) * time.Millisecond):
		}
		if turn >= 4 { // no disturbance at the end
			continue
		}
		switch (first + turn) % 3 {
		case 0:
			x.restartSNAP()
		case 1:
			x.kill()
			x.begin()
		case 2:
			x.kill()
			x.restartSNAP()
			x.begin()
		}
	}
}

func (x *storm) restartSNAP() {
	x.restarts.Add(1)
	testkit.Must(x.t, x.snap.Restart())
	x.restarts.Add(1)
}

// work makes a client's steps.
func (o *owner) work() error {
	defer o.hangUp()
	for range steps {
		v := o.all[o.random.IntN(len(o.all))]
		var err error
		switch {
		case v.device == "":
			err = o.create(v)
		case o.random.IntN(3) == 0:
			err = o.look(v)
		default:
			err = o.remove(v)
		}
		if err != nil {
			return fmt.Errorf("volume %s: %w", v.id, err)
		}
	}
	// As in the node driver's heartbeat, CreateDevice is repeated for devices
	// that SNAP lost.
	for _, v := range o.all {
		if err := o.look(v); err != nil {
			return fmt.Errorf("volume %s: %w", v.id, err)
		}
	}
	return nil
}

// call repeats a call until it returns OK, or NOT_FOUND, which it returns.
func (o *owner) call(do func(*client.Client) error) error {
	for deadline := time.Now().Add(stormPatience); ; {
		var err error
		if o.link == nil {
			o.link, err = client.Dial(o.storm.ctx, o.storm.socket())
		}
		if err == nil {
			err = do(o.link)
			o.storm.calls.Add(1)
		}
		switch code := status.Code(err); {
		case err == nil, code == codes.NotFound:
			return err
		case code == codes.Unavailable: // the plugin was killed
			o.hangUp()
		case code != codes.FailedPrecondition:
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("refused for %s: %w", stormPatience, err)
		}
		time.Sleep(time.Duration(1+o.random.IntN(10)) * time.Millisecond) // backoff
	}
}

func (o *owner) hangUp() {
	if o.link != nil {
		_ = o.link.Close()
		o.link = nil
	}
}

func (o *owner) create(v *owned) error {
	return o.call(func(c *client.Client) error {
		before := o.storm.restarts.Load()
		device, err := c.Create(o.storm.ctx, client.Create{Volume: v.id, Mode: v.mode, Modes: v.modes(), Contexts: v.contexts})
		if err == nil {
			v.device, v.process = device, before
			if o.storm.restarts.Load() != before {
				v.process = -1 // one process or the other
			}
		}
		return err
	})
}

func (o *owner) remove(v *owned) error {
	name := v.device
	if o.random.IntN(2) == 0 {
		name = ""
	}
	err := o.call(func(c *client.Client) error { return c.Delete(o.storm.ctx, v.id, name) })
	if err == nil {
		v.device = ""
	}
	return err
}

// look checks that the device exists; only a restart of SNAP can remove it.
func (o *owner) look(v *owned) error {
	if v.device == "" {
		return nil
	}
	err := o.call(func(c *client.Client) error { return onlyErr(c.Get(o.storm.ctx, v.id, v.device)) })
	if status.Code(err) != codes.NotFound {
		return err
	}
	if v.process >= 0 && v.process%2 == 0 && o.storm.restarts.Load() == v.process {
		return errors.Join(errors.New("the acknowledged device is gone without a restart of SNAP"), err)
	}
	return o.create(v)
}

// compare compares SNAP, the machine and ListDevices with the acknowledged
// devices.
func (x *storm) compare(owners []*owner) {
	testkit.Must(x.t, x.plugin.ready(x.ctx))
	devices := map[string]string{}
	var volumes []volume
	for _, o := range owners {
		testkit.Must(x.t, o.recreate())
		for _, v := range o.all {
			if v.device != "" {
				devices[v.id] = v.device
				volumes = append(volumes, v.volume)
			}
		}
	}
	x.awaitAgreement(devices, volumes...)
}

// recreate repeats CreateDevice for devices lost in a late restart of SNAP.
func (o *owner) recreate() error {
	defer o.hangUp()
	for _, v := range o.all {
		if err := o.look(v); err != nil {
			return fmt.Errorf("volume %s: %w", v.id, err)
		}
	}
	return nil
}
