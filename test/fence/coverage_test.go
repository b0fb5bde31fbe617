package fence

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/test/fence/rig"
	"github.com/cleatproject/cleat/test/fence/serve"
	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

// A fence that covers no storage server, or leaves the client a way to one, is
// recorded and in force, and never answered with OK.
func TestFenceCoversAStorageServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	victim := s.host(1, 7)
	status := filepath.Join(s.machine.Dir, "status.sock")
	service := s.serve("--ports", "4420", "--metrics-address", status, "--check-interval", "100ms")
	s.awaitReady(status, false)
	incomplete := func(words ...string) {
		t.Helper()
		err := service.Fence(t.Context(), nil, victimBlock)
		s.code(err, codes.FailedPrecondition)
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("the error lacks %q: %v", w, err)
			}
		}
		if table := s.machine.MustRun(t, "nft", "list", "table", "inet", "cleat_fence"); !strings.Contains(table, victim.v4.String()) {
			t.Errorf("the fence is not in force:\n%s", table)
		}
		if list, err := service.List(t.Context(), nil); err != nil || len(list) > 0 {
			t.Errorf("list: %v, %v", list, err)
		}
	}
	incomplete("no storage server listens on the fenced ports")
	s.checks(service, "10.9.1.8", "a fence would not be confirmed: host: no storage server listens on the fenced ports")

	disk := testkit.Value(storage.StartNBD(s.machine))(t)
	session, err := storage.NBDSession(1, s.dial(victim, victim.v4, storage.NBDPort))
	testkit.Must(t, err)
	w := storage.NewWriter(1, session, pace)
	t.Cleanup(w.Close)
	s.await(20, w)
	testkit.Value(storage.StartRecords(s.machine, recordPort))(t)
	s.awaitReady(status, true)
	incomplete("1 sessions use ports that are not fenced", "10809", "nbd-server (process ")
	s.checks(service, victim.v4.String(), "a fence would not be confirmed: host: 1 sessions use ports that are not fenced", "session on an open port   10.9.1.7:")
	s.await(20, w) // the client writes on, which is why

	testkit.Must(t, service.Stop())
	service = s.serve("--ports", "nvme-tcp,nbd")
	// A check of another client changes nothing, and its sessions are not shown.
	if out := s.checks(service, "10.9.1.8", "", "10809", "nbd-server (process "); strings.Contains(out, "10.9.1.7") {
		t.Errorf("check of another client:\n%s", out)
	}
	when := s.fence(service, []string{victimBlock}, w)
	list := s.machine.MustRun(t, cleat, "fence", "list", "--endpoint", service.Endpoint)
	if !strings.Contains(list, victimBlock) || !strings.Contains(list, "host: port 10809 (nbd-server)") {
		t.Errorf("cleat fence list:\n%s", list)
	}
	newest, before, err := storage.Newest(disk.Path, 1)
	if err != nil || newest > when.sent[w] {
		t.Errorf("newest block %d (%v), sent %d", newest, err, when.sent[w])
	}
	if list, err := service.List(t.Context(), nil); err != nil || !slices.Equal(list, []string{victimBlock}) {
		t.Errorf("list: %v, %v", list, err)
	}
	s.refused(victim, victim.v4, storage.NBDPort)
	if _, after, err := storage.Newest(disk.Path, 1); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the fenced client's blocks have changed after the answer (%v)", err)
	}
	s.unfence(service, victimBlock)
}

// The server is in another network namespace, behind DNAT: its socket is not seen
// here, and its session would continue after the fence. Only when the server has
// ended, and the packet filter's connection with it, is the fence confirmed.
func TestFenceDoesNotCoverAForwardedPort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		family, pod string
		client      func(*host) netip.Addr
	}{
		{"ip", "10.9.200.1", func(h *host) netip.Addr { return h.v4 }},
		{"ip6", "fd09:0:0:c8::1", func(h *host) netip.Addr { return h.v6 }},
	} {
		t.Run(c.family, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			victim := s.host(1, 7)
			client := c.client(victim)
			pod := rig.NewMachine(t)
			s.network.Attach(t, pod.Namespace, netip.MustParsePrefix("10.9.200.1/16"), netip.MustParsePrefix("fd09:0:0:c8::1/48"))
			disk := testkit.Value(storage.StartNBD(pod))(t)
			server := netip.AddrPortFrom(netip.MustParseAddr(c.pod), storage.NBDPort).String()
			s.machine.MustRun(t, "nft", fmt.Sprintf(`table %[1]s forward {
				chain pre { type nat hook prerouting priority dstnat; tcp dport %[2]d dnat to %[3]s; }
				chain post { type nat hook postrouting priority srcnat; %[1]s daddr %[4]s masquerade; }
			}`, c.family, storage.NBDPort, server, c.pod))
			s.machine.MustRun(t, "sh", "-c", `echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
				for state in fin_wait close_wait last_ack; do echo 1 > /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_$state; done
				echo 20 > /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established`) // a reset that crosses an acknowledgement does not end the state
			session, err := storage.NBDSession(1, s.dial(victim, client, storage.NBDPort))
			testkit.Must(t, err)
			w := storage.NewWriter(1, session, pace)
			t.Cleanup(w.Close)
			s.await(20, w)
			testkit.Value(storage.StartRecords(s.machine, recordPort))(t)
			service := s.serve()
			s.checks(service, client.String(), "would not be confirmed: host: 1 connections are forwarded", "forwarded session", "a server at "+server)
			s.await(20, w) // a check fences nothing
			block := netip.PrefixFrom(client, client.BitLen()).String()
			for range 2 {
				err := service.Fence(t.Context(), nil, block)
				s.code(err, codes.FailedPrecondition)
				if err != nil && !strings.Contains(err.Error(), "a server at "+server) {
					t.Errorf("the error does not name the server: %v", err)
				}
			}
			servers := testkit.Value(pod.Find(filepath.Join(pod.Dir, "nbd.conf")))(t)
			if len(servers) != 2 {
				t.Fatalf("%d processes of nbd-server, want the listening one and that of the session", len(servers))
			}
			for _, process := range servers {
				testkit.Must(t, pod.KillAndWait(t.Context(), process.PID))
			}
			testkit.Value(storage.StartNBD(pod))(t)
			testkit.EventuallyNil(t, "the fence is confirmed after the end of the server", func() error { return service.Fence(t.Context(), nil, block) })
			_, before, err := storage.Newest(disk.Path, 1)
			testkit.Must(t, err)
			s.refused(victim, client, storage.NBDPort)
			s.unfence(service, block)
			again := s.dial(victim, client, storage.NBDPort)
			session, err = storage.NBDSession(2, again)
			testkit.Must(t, err)
			later := storage.NewWriter(2, session, pace)
			t.Cleanup(later.Close)
			s.await(100, later)
			if _, after, err := storage.Newest(disk.Path, 1); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the old session wrote after the answer (%v)", err)
			}
		})
	}
}

// awaitReady waits until the service says on /readyz that its fences would cover
// a storage server, or that they would not.
func (s *site) awaitReady(status string, want bool) {
	s.t.Helper()
	testkit.EventuallyNil(s.t, "/readyz", func() error {
		var document struct {
			Ready  bool              `json:"ready"`
			Checks map[string]string `json:"checks"`
		}
		err := server.Ask(s.t.Context(), status, "/readyz", &document)
		if err != nil || document.Ready != want || !want && !strings.Contains(document.Checks["coverage"], "no storage server listens") {
			return fmt.Errorf("%+v (%w), want ready: %t", document, err, want)
		}
		return nil
	})
}

// checks runs cleat fence check; problem is its error, empty if it has none.
func (s *site) checks(v *serve.Service, client, problem string, words ...string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), cleat, "fence", "check", "--endpoint", v.Endpoint, client)
	text, err := cmd.CombinedOutput()
	out := string(text)
	if (err != nil) != (problem != "") || !strings.Contains(out, problem) {
		s.t.Errorf("cleat fence check %s: %v, want %q\n%s", client, err, problem, out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			s.t.Errorf("cleat fence check %s: want %q:\n%s", client, w, out)
		}
	}
	return out
}
