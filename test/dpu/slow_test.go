package dpu

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/testkit"
)

// slowness is the delay of a SNAP process and the timeouts of the plugin.
type slowness struct {
	each   time.Duration // duration of every request
	answer time.Duration // of the plugin: --answer-within
	look   time.Duration // timeout of a query
	grace  time.Duration
}

// SNAP hangs in the first requests, or stays slow until the device is created,
// which takes several requests. The plugin's timeouts are a twenty-fifth of the
// real ones, which make soak tests.
func TestSNAPIsSlow(t *testing.T) {
	t.Parallel()
	program := workload.BuildWith(t, workload.Replacement{
		File: "dpu/plugin/plugin.go",
		Old:  "&c.LookWithin: 5 * time.Second, &c.Grace: 30 * time.Second",
		New:  "&c.LookWithin: 200 * time.Millisecond, &c.Grace: 1200 * time.Millisecond",
	})
	for _, c := range []struct {
		name string
		each time.Duration
		once bool
	}{
		{"in the first requests", 20 * time.Second, true},
		{"until the device is made", 3600 * time.Millisecond, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slow(t, program, slowness{each: c.each, answer: time.Second, look: 200 * time.Millisecond, grace: 1200 * time.Millisecond}, c.once)
		})
	}
}

// slow checks the plugin's guarantees while SNAP is slow; once: only in the
// first requests.
func slow(t *testing.T, program string, x slowness, once bool) {
	s := newSite(t, spdktest.Config{Flavour: spdktest.Fork, SNAP: true}, program, "--answer-within", x.answer.String())
	s.start()
	v, file := s.namespace("v", "a", 1), s.file("file")
	s.target("a", 2)
	there, device := s.create(file), s.create(v)
	late := s.namespace("late", "a", 2)
	s.eventually("the device of the file is usable", func() error { return s.usable(file, there) })
	var good time.Time
	s.eventually("a fresh answer", func() error {
		good = time.Now()
		err := onlyErr(s.plugin.Get(s.ctx, v.id, device))
		if took := time.Since(good); err == nil && took >= x.look {
			err = fmt.Errorf("the query took %s", took)
		}
		return err
	})
	s.snap.Forget() // on a busy machine such short timeouts can repeat the first attach
	s.snap.Inject(spdktest.Fault{Wait: x.each})

	begun := time.Now()
	creating := make(chan error, 1)
	go func() { creating <- onlyErr(s.try(late)) }()
	// An error would make the node driver withdraw the volume from its host.
	// After the grace, on a busy machine, an error is allowed.
	if _, err := s.plugin.Get(s.ctx, v.id, device); err != nil && time.Since(good) < x.grace {
		t.Errorf("GetDevice %s after the last good answer: %v", time.Since(good), err)
	}
	if ready, reported, err := s.plugin.Probe(s.ctx); err != nil || !reported || ready {
		t.Errorf("Probe: ready %t, reported %t, %v", ready, reported, err)
	}
	probed := time.Now()
	s.refused(<-creating, "is still in progress after")
	// SNAP has not responded yet, so the plugin did not wait for it.
	if took := time.Since(begun); once && took > x.each { // the other case's few seconds are too short under load
		t.Errorf("CreateDevice was answered after %s, more than SNAP takes for a request", took)
	}
	t.Logf("CreateDevice was answered %s after the probe", time.Since(probed).Round(time.Millisecond))
	s.graceEnds(v, device)
	if once {
		s.snap.Clear() // held requests stay held
	}
	made := s.createSlowly(late, 10*x.each)
	s.snap.Clear()
	n := 0
	for _, c := range s.snap.Calls() {
		if c.Method == "bdev_nvme_attach_controller" {
			n++
		}
	}
	if n > 0 {
		t.Errorf("%d attaches for the second device of a subsystem", n)
	}
	testkit.Must(s.t, s.plugin.ready(s.ctx))
	s.awaitAgreement(map[string]string{v.id: device, file.id: there, late.id: made}, v, file, late)
	for _, v := range []volume{v, file, late} {
		s.remove(v, "")
	}
	s.empty()
}

var errStillGood = errors.New("GetDevice still answers")

// graceEnds waits until GetDevice is UNAVAILABLE: the plugin can neither
// confirm the device nor report it gone.
func (s *site) graceEnds(v volume, device string) {
	s.t.Helper()
	s.eventually("the grace ends", func() error {
		_, err := s.plugin.Get(s.ctx, v.id, device)
		switch status.Code(err) {
		case codes.OK:
			return errStillGood
		case codes.FailedPrecondition:
			return nil
		}
		s.t.Fatalf("GetDevice while SNAP is slow: %v", err)
		return nil
	})
}

// createSlowly is create with its own timeout; each error says that the work
// continues, not that it was restarted.
func (s *site) createSlowly(v volume, most time.Duration) string {
	s.t.Helper()
	for begun := time.Now(); time.Since(begun) < most+patience; {
		device, err := s.try(v)
		if err == nil {
			return device
		}
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "is still in progress after") {
			s.t.Fatalf("CreateDevice, repeated while SNAP is slow: %v", err)
		}
	}
	s.t.Fatalf("CreateDevice of %s has not completed", v.id)
	return ""
}
