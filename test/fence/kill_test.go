package fence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/fence/serve"
	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// armed returns the environment that kills the service at a point, and the file
// that records the hit.
func (s *site) armed(point string) (env []string, file string) {
	file = filepath.Join(s.machine.Dir, "hit")
	_ = os.Remove(file)
	return []string{"CLEAT_CRASHPOINT=" + point + "=1", "CLEAT_CRASHPOINT_LOG=" + file}, file
}

// dead waits for a service that is expected to die at a point.
func (s *site) dead(v *serve.Service, point, file string) {
	s.t.Helper()
	if _, err := v.Wait(patience); err != nil {
		s.t.Fatalf("%s was never reached: %v", point, err)
	}
	if hit, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(hit)) != point {
		s.t.Fatalf("the service ended, but not at %s: %q, %v", point, hit, err)
	}
}

// The service is killed between any two steps; the next one continues from
// there.
func TestKilledBetweenSteps(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records := s.records()
	victim, neighbour := s.host(1, 7), s.host(2, 5)
	n := s.writer(neighbour, neighbour.v4)
	for _, point := range testkit.CrashPoints(t, "fence", "*") {
		t.Run(point, func(t *testing.T) {
			s := *s
			s.t = t
			s.killAt(cleat, point, records, victim)
			s.unharmed(records, n)
		})
	}
}

// killAt fences and unfences the victim with one kill.
func (s *site) killAt(program, point string, records *storage.Records, victim *host) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*patience)
	defer cancel()
	w := s.writer(victim, victim.v4)
	s.await(20, w)
	env, hit := s.armed(point)
	service := s.serveArmed(program, env)
	err := service.Fence(ctx, nil, victimBlock)
	if strings.HasPrefix(point, "fence.") {
		if err == nil {
			s.t.Errorf("a call succeeded on a service that should have died at %s", point)
		}
		s.dead(service, point, hit)
		if point != "fence.intent" { // blocked has the state at the time of death
			s.refused(victim, victim.v4, recordPort)
		}
		service = s.serveArmed(program, nil)
		s.intentHolds(service, point, victim)
		err = service.Fence(ctx, nil, victimBlock)
	}
	testkit.Must(s.t, err)
	when := takeBaseline(w)
	if err := s.listed(service, victimBlock); err != nil {
		s.t.Error(err)
	}
	s.refused(victim, victim.v4, recordPort)
	err = service.Unfence(ctx, nil, victimBlock)
	if strings.HasPrefix(point, "unfence.") {
		if err == nil {
			s.t.Errorf("a call succeeded on a service that should have died at %s", point)
		}
		s.dead(service, point, hit)
		service = s.serveArmed(program, nil)
		if point == "unfence.cleared" {
			s.intentHolds(service, "fence.confirmed", victim)
		}
		err = service.Unfence(ctx, nil, victimBlock)
	}
	testkit.Must(s.t, err)
	if err := s.listed(service); err != nil {
		s.t.Error(err)
	}
	s.await(20, s.writer(victim, victim.v4))
	s.nothingSince(when, records)
	if err := service.Stop(); err != nil {
		s.t.Error(err)
	}
}

// intentHolds fails unless a new service keeps the recorded fence in force,
// and lists the fence only if the call could have succeeded.
func (s *site) intentHolds(v *serve.Service, point string, victim *host) {
	s.t.Helper()
	if err := s.holds(); err != nil {
		s.t.Errorf("killed at %s: the next service does not apply the recorded fence: %v", point, err)
	}
	s.refused(victim, victim.v4, recordPort)
	want := []string{}
	if point == "fence.confirmed" {
		want = append(want, victimBlock)
	}
	if err := s.listed(v, want...); err != nil {
		s.t.Errorf("killed at %s: %v", point, err)
	}
}

// The service is killed at random instants of a fence, and every other time its
// holder too; the answer of the last call is true.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := newSite(t)
	records := s.records()
	victim, neighbour := s.host(1, 7), s.host(2, 5)
	n := s.writer(neighbour, neighbour.v4)
	rounds := 2
	if soak.Enabled {
		rounds = 40
	}
	for round := range rounds {
		w := s.writer(victim, victim.v4)
		s.await(20, w)
		for again := range 3 {
			service := s.serve()
			call, cancel := context.WithCancel(t.Context())
			answered := make(chan error, 1)
			go func() { answered <- service.Fence(call, nil, victimBlock) }()
			time.Sleep(time.Duration(random.Int64N(int64(40 * time.Millisecond))))
			err := service.Kill()
			if round%2 == 1 && again == 0 {
				_ = serve.KillHolder(t.Context(), s.machine) // there might be no holder yet
			}
			cancel()
			if <-answered == nil {
				when := takeBaseline(w)
				s.refused(victim, victim.v4, recordPort)
				s.nothingSince(when, records)
			}
			testkit.Must(t, err)
		}
		service := s.serve()
		when := s.fence(service, []string{victimBlock}, w)
		s.unfence(service, victimBlock)
		s.await(5, s.writer(victim, victim.v4), n)
		s.nothingSince(when, records)
		if err := service.Stop(); err != nil {
			t.Fatal(fmt.Errorf("round %d: %w", round, err))
		}
	}
	s.unharmed(records, n)
}
