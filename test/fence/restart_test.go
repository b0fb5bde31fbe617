package fence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/fence/serve"
	"github.com/cleatproject/cleat/test/testkit"
)

const victimBlock = "10.9.1.7/32"

// holds fails unless the packet filter's fence table contains the victim's
// address.
func (s *site) holds() error {
	rules, err := s.machine.Run(context.WithoutCancel(s.t.Context()), "nft", "list", "table", "inet", "cleat_fence")
	if err == nil && !strings.Contains(rules, "10.9.1.7") {
		err = fmt.Errorf("the table does not contain the victim: %s", rules)
	}
	return err
}

func (s *site) listed(v *serve.Service, want ...string) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	blocks, err := v.List(ctx, nil)
	if err == nil && !slices.Equal(blocks, want) {
		err = fmt.Errorf("got the list %v, want %v", blocks, want)
	}
	return err
}

// Fences survive SIGKILL and SIGTERM of the server, and SIGKILL of both the
// server and the process that holds the table; the next server continues.
func TestFencesSurviveServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service := s.records(), s.serve()
	victim := s.host(1, 7)
	w := s.writer(victim, victim.v4)
	s.await(20, w)
	when := s.fence(service, []string{victimBlock}, w)
	for _, way := range []struct {
		name string
		end  func() error
	}{
		{"SIGTERM", func() error { return service.Stop() }}, // of the service that runs by then
		{"SIGKILL", func() error { return service.Kill() }},
		{"SIGKILL, then its holder", func() error { return errors.Join(service.Kill(), serve.KillHolder(t.Context(), s.machine)) }},
		{"its holder, then SIGKILL", func() error { return errors.Join(serve.KillHolder(t.Context(), s.machine), service.Kill()) }},
	} {
		if err := way.end(); err != nil {
			t.Fatalf("%s: %v", way.name, err)
		}
		if err := s.holds(); err != nil {
			t.Errorf("after %s: %v", way.name, err)
		}
		s.refused(victim, victim.v4, recordPort)
		service = s.serve()
		if err := s.listed(service, victimBlock); err != nil {
			t.Errorf("after %s and a start: %v", way.name, err)
		}
		s.refused(victim, victim.v4, recordPort)
	}
	s.unfence(service, victimBlock)
	s.await(20, s.writer(victim, victim.v4))
	s.nothingSince(when, records)
	if err := s.listed(service); err != nil {
		t.Error(err)
	}
}

// Another program flushes the packet filter: the table of a live holder stays.
func TestForeignFlush(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.records()
	service := s.serve("--check-interval", "100ms")
	victim := s.host(1, 7)
	s.fence(service, []string{victimBlock})
	flush := func() {
		t.Helper()
		s.machine.MustRun(t, "nft", "flush", "ruleset")
		_, _ = s.machine.Run(t.Context(), "nft", "delete", "table", "inet", "cleat_fence") // refused, or the table does not exist
	}
	flush()
	if err := s.holds(); err != nil {
		t.Error(err)
	}
	testkit.Must(t, service.Kill())
	flush() // the holder is still alive
	if err := s.holds(); err != nil {
		t.Error(err)
	}
	service = s.serve("--check-interval", "100ms")
	testkit.Must(t, serve.KillHolder(t.Context(), s.machine))
	flush() // before or after a new holder starts
	testkit.EventuallyNil(t, "the table is recreated", s.holds)
	testkit.EventuallyNil(t, "it is listed", func() error { return s.listed(service, victimBlock) })
	s.refused(victim, victim.v4, recordPort)
	testkit.EventuallyNil(t, "a new holder runs", func() error {
		holders, err := s.machine.Find("fence-holder")
		if err == nil && len(holders) != 1 {
			err = fmt.Errorf("holders: %v", holders)
		}
		return err
	})
	flush()
	if err := s.holds(); err != nil {
		t.Error(err)
	}
}

// Both processes are dead when the packet filter is flushed: clients can
// connect until the next start, which ends their sessions first.
func TestWindowWithoutServerAndHolder(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service := s.records(), s.serve()
	victim := s.host(1, 7)
	s.fence(service, []string{victimBlock})
	testkit.Must(t, errors.Join(service.Kill(), serve.KillHolder(t.Context(), s.machine)))
	s.machine.MustRun(t, "nft", "flush", "ruleset")
	w := s.writer(victim, victim.v4) // connects in the window
	s.await(20, w)
	service = s.serve()
	if err := s.holds(); err != nil {
		t.Errorf("the service serves before its fences are applied: %v", err)
	}
	s.refused(victim, victim.v4, recordPort)
	select { // ended without a call
	case <-w.Done():
	case <-time.After(patience):
		t.Error("the session opened in the window still works")
	}
	when := s.fence(service, []string{victimBlock}, w)
	s.unfence(service, victimBlock)
	s.await(20, s.writer(victim, victim.v4))
	s.nothingSince(when, records)
}

// After a reboot only files are left, and fences are applied before the service
// can be called.
func TestReboot(t *testing.T) {
	t.Parallel()
	newSite(t).reboot(cleat)
}

func (s *site) reboot(program string) {
	s.t.Helper()
	records, service := s.records(), s.serveArmed(program, nil)
	victim, neighbour := s.host(1, 7), s.host(2, 5)
	w := s.writer(victim, victim.v4)
	s.await(20, w)
	// So many that they are not applied by chance shortly after the start.
	blocks := append(manyBlocks(5_000), victimBlock)
	when := s.fence(service, blocks, w)
	s.machine.Reboot()
	s.network.Attach(s.t, s.machine.Namespace, server4, server6)
	if err := s.holds(); err == nil {
		s.t.Fatal("the packet filter survived the reboot")
	}
	// In the order of a machine's start: fences, then storage.
	service = s.serveArmed(program, nil)
	if err := s.holds(); err != nil {
		s.t.Fatalf("the service serves before its fences are applied: %.200s", err)
	}
	s.records()
	s.refused(victim, victim.v4, recordPort)
	n := s.writer(neighbour, neighbour.v4)
	s.await(20, n)
	s.unfence(service, blocks...)
	s.await(20, s.writer(victim, victim.v4), n)
	s.nothingSince(when, records)
}

// A lost state directory does not remove fences.
func TestLostStateKeepsFences(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.records()
	service := s.serve()
	victim := s.host(1, 7)
	s.fence(service, []string{victimBlock})
	testkit.Must(t, service.Kill())
	testkit.Must(t, os.Rename(filepath.Join(serve.State(s.machine), "fences.db"), filepath.Join(s.machine.Dir, "lost")))
	ended := testkit.Value(serve.Begin(s.machine, cleat, nil, "--ports", "4420,3260,10809"))(t)
	defer ended.Close()
	if status, err := ended.Wait(patience); err != nil || status.ExitStatus() == 0 {
		t.Errorf("a start without its records ended with %#x, %v", status, err)
	}
	if said := ended.Log(); !strings.Contains(said, "--lift-unrecorded") || !strings.Contains(said, victimBlock) {
		t.Errorf("the error does not name the cause: %s", said)
	}
	s.refused(victim, victim.v4, recordPort)
	service = s.serve("--lift-unrecorded")
	s.await(20, s.writer(victim, victim.v4))
	if err := s.listed(service); err != nil {
		t.Error(err)
	}
}

// SIGTERM while a call waits for a hung server: the process ends within its
// bound, blocks stay fenced, and the next one continues.
func TestStopDuringPendingCall(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service, victim := s.records(), s.serve(), s.host(1, 7)
	w := s.writer(victim, victim.v4)
	s.await(20, w)
	testkit.Must(t, records.Signal(unix.SIGSTOP))
	answered := make(chan error, 1)
	go func() { answered <- service.Fence(context.WithoutCancel(t.Context()), nil, victimBlock) }()
	testkit.EventuallyNil(t, "the fence blocks", s.holds)
	begun := time.Now()
	if err := service.Process.Stop(); err != nil {
		t.Error(err)
	}
	t.Logf("stopped after %s", time.Since(begun).Round(time.Millisecond))
	if err := <-answered; err == nil {
		t.Error("the call succeeded")
	} else if c := status.Code(err); c != codes.Unavailable && c != codes.Canceled && c != codes.DeadlineExceeded {
		t.Errorf("the call returned %v", err)
	}
	s.refused(victim, victim.v4, recordPort)
	service = s.serve()
	if err := s.holds(); err != nil {
		t.Error(err)
	}
	testkit.Must(t, records.Signal(unix.SIGCONT))
	when := s.fence(service, []string{victimBlock}, w)
	s.unfence(service, victimBlock)
	s.await(20, s.writer(victim, victim.v4))
	s.nothingSince(when, records)
}

// The disk of the state is full: a fence that cannot be recorded is an error,
// and existing records stay.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.records()
	victim := s.host(1, 7)
	small := filepath.Join(s.machine.Dir, "small")
	mounted := s.machine.Start("mount", nil, "/bin/sh", "-c", "mkdir "+small+" && mount -t tmpfs -o size=7m none "+small)
	if code, err := mounted.Wait(patience); err != nil || code != 0 {
		t.Fatalf("%v, %v: %s", code, err, mounted.Log())
	}
	flags := []string{"--state-dir", filepath.Join(small, "state")}
	service := s.serve(flags...)
	s.fence(service, []string{victimBlock})
	filled := s.machine.Start("fill", nil, "/bin/sh", "-c", "cat /dev/zero > "+filepath.Join(small, "filling"))
	testkit.Value(filled.Wait(patience))(t)
	var err error
	for round := 0; round < 4 && err == nil; round++ { // until the reserved space is used up
		err = service.Fence(t.Context(), map[string]string{"round": fmt.Sprint(round)}, manyBlocks(10_000)...)
	}
	if err == nil {
		t.Fatal("forty thousand records fit on a full disk of 7 MiB")
	}
	t.Log(err)
	s.refused(victim, victim.v4, recordPort)
	testkit.Must(t, service.Kill())
	service = s.serve(flags...)
	s.refused(victim, victim.v4, recordPort)
	if blocks, err := service.List(t.Context(), map[string]string{}); err != nil || !strings.Contains(fmt.Sprint(blocks), victimBlock) {
		t.Errorf("%d blocks are listed, %v", len(blocks), err)
	}
	s.unfence(service, victimBlock)
	s.await(20, s.writer(victim, victim.v4))
}
