package fence

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/spec/lib/go/fence"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/fence/serve"
	"github.com/cleatproject/cleat/test/testkit"
)

// The sidecar's first calls, with its generated client.
func TestIdentity(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	service := s.serve()
	who, err := service.Identity().GetIdentity(t.Context(), &identity.GetIdentityRequest{})
	if err != nil || who.GetName() != "fence.cleat.dev" || who.GetVendorVersion() == "" {
		t.Errorf("GetIdentity = %v, %v", who, err)
	}
	capabilities, err := service.Identity().GetCapabilities(t.Context(), &identity.GetCapabilitiesRequest{})
	testkit.Must(t, err)
	var said []string
	for _, c := range capabilities.GetCapabilities() {
		switch {
		case c.GetService() != nil:
			said = append(said, c.GetService().GetType().String())
		case c.GetNetworkFence() != nil:
			said = append(said, c.GetNetworkFence().GetType().String())
		}
	}
	if want := []string{"CONTROLLER_SERVICE", "NETWORK_FENCE"}; !slices.Equal(said, want) {
		t.Errorf("capabilities %v, want %v", said, want)
	}
	_, err = service.Controller().GetFenceClients(t.Context(), &fence.GetFenceClientsRequest{})
	s.code(err, codes.Unimplemented)
}

// Bad input gets a clear error, and changes nothing. fence/request and
// fence/plan have all the ways of it.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.records()
	service, victim := s.serve(), s.host(1, 7)
	w := s.writer(victim, victim.v4)
	mine := map[string]string{"clusterID": "one"}
	testkit.Must(t, service.Fence(t.Context(), mine, "192.0.2.0/24"))
	before := s.machine.MustRun(t, "nft", "list", "ruleset")
	for _, c := range []struct {
		blocks  []string
		words   string
		code    codes.Code
		unfence bool
	}{
		{blocks: nil, words: "cidr", code: codes.InvalidArgument},
		{blocks: []string{victimBlock, "10.9.1.7/33"}, words: "10.9.1.7/33", code: codes.InvalidArgument},
		{blocks: []string{victimBlock, "10.9.0.0/16"}, words: "10.9.0.2", code: codes.InvalidArgument},
		{blocks: []string{"fd09::/48"}, words: "fd09::2", code: codes.InvalidArgument},
		{blocks: []string{"0.0.0.0/0"}, words: "fence.cleat.dev/force", code: codes.InvalidArgument},
		{blocks: []string{"192.0.2.0/24"}, words: "clusterID", code: codes.FailedPrecondition, unfence: true},
	} {
		call := service.Fence
		if c.unfence {
			call = service.Unfence
		}
		err := call(t.Context(), map[string]string{"clusterID": "two"}, c.blocks...)
		if status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.words) {
			t.Errorf("%v: %v, want %v with %q", c.blocks, err, c.code, c.words)
		}
	}
	after := s.machine.MustRun(t, "nft", "list", "ruleset")
	if before != after {
		t.Errorf("the packet filter was\n%s\nand is\n%s", before, after)
	}
	if err := s.listed(service, "192.0.2.0/24"); err != nil {
		t.Error(err)
	}
	s.await(20, w)
	if err := service.Unfence(t.Context(), mine, "198.51.100.0/24"); err != nil {
		t.Errorf("unfencing a block that is not fenced: %v", err)
	}
	if err := service.Unfence(t.Context(), mine, "192.0.2.0/24"); err != nil {
		t.Error(err)
	}
}

// With the force parameter everything can be fenced; the service can still be
// called, and can unfence.
func TestForceFencesEverything(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service, victim := s.records(), s.serve(), s.host(1, 7)
	w, w6 := s.writer(victim, victim.v4), s.writer(victim, victim.v6)
	s.await(20, w, w6)
	force := map[string]string{"fence.cleat.dev/force": "true"}
	testkit.Must(t, service.Fence(t.Context(), force, "0.0.0.0/0", "::/0"))
	when := takeBaseline(w, w6)
	s.refused(victim, victim.v4, recordPort)
	s.refused(victim, victim.v6, recordPort)
	if err := s.listed(service, "0.0.0.0/0", "::/0"); err != nil {
		t.Error(err)
	}
	s.unfence(service, "0.0.0.0/0", "::/0")
	s.await(20, s.writer(victim, victim.v4), s.writer(victim, victim.v6))
	s.nothingSince(when, records)
}

// Secrets are required if configured, and are stored nowhere.
func TestSecrets(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const right, wrong, value = "kestrel-in-the-morning", "heron-at-noon", "parameter-of-a-cluster"
	file := filepath.Join(t.TempDir(), "token")
	testkit.Must(t, os.WriteFile(file, []byte(right+"\n"), 0o600))
	service := s.serve("--standby", "--secret", "token="+file, "--log-level", "debug")
	ask := func(secrets map[string]string, block string) error {
		_, err := service.Controller().FenceClusterNetwork(t.Context(), &fence.FenceClusterNetworkRequest{
			Parameters: map[string]string{"clusterID": value}, Secrets: secrets, Cidrs: serve.CIDRs([]string{block})})
		return err
	}
	said := []error{
		ask(nil, victimBlock), ask(map[string]string{"token": wrong}, victimBlock), ask(map[string]string{"tokn": right}, victimBlock),
	}
	for _, err := range said {
		s.code(err, codes.Unauthenticated)
	}
	_, err := service.Controller().ListClusterFence(t.Context(), &fence.ListClusterFenceRequest{})
	s.code(err, codes.Unauthenticated)
	bad := ask(map[string]string{"token": right}, "10.9.1.7/24")
	s.code(bad, codes.InvalidArgument)
	testkit.Must(t, ask(map[string]string{"token": right}, victimBlock))
	if err := s.holds(); err != nil {
		t.Error(err)
	}
	texts := map[string]string{"the log": serve.Logs(s.machine), "an error": fmt.Sprint(append(said, bad))}
	err = filepath.WalkDir(serve.State(s.machine), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		texts[path] = string(data)
		return err
	})
	if err != nil || len(texts) < 3 {
		t.Fatalf("the state is %d files, %v", len(texts)-2, err)
	}
	processes, err := s.machine.Find("--state-dir")
	if err != nil || len(processes) != 1 {
		t.Errorf("the service is %v, %v", processes, err)
	}
	texts["an argument"] = fmt.Sprint(processes)
	for where, text := range texts {
		for _, secret := range []string{right, wrong, value} {
			if strings.Contains(text, secret) {
				t.Errorf("%s contains %q", where, secret)
			}
		}
	}
}

// The CLI fences and unfences.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service, victim := s.records(), s.serve(), s.host(1, 7)
	w := s.writer(victim, victim.v4)
	s.await(20, w)
	run := func(args ...string) (string, error) {
		return s.machine.Run(t.Context(), append([]string{cleat, "fence"}, append(args, "--endpoint", service.Endpoint)...)...)
	}
	if out, err := run("add", "10.9.1.7"); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	when := takeBaseline(w)
	s.refused(victim, victim.v4, recordPort)
	out, err := run("list", "-o", "json")
	var listed []struct{ CIDR string }
	if err == nil {
		err = json.Unmarshal([]byte(out), &listed)
	}
	if err != nil || len(listed) != 1 || listed[0].CIDR != victimBlock {
		t.Errorf("list says %s, %v", out, err)
	}
	if out, err := run("add", "10.9.1.7/24"); err == nil || !strings.Contains(err.Error(), "10.9.1.0/24") {
		t.Errorf("a block with host bits: %v, %s", err, out)
	}
	if out, err := run("clients"); err == nil {
		t.Errorf("clients of a server without a driver: %s", out)
	}
	if out, err := run("rm", "10.9.1.7"); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	s.await(20, s.writer(victim, victim.v4))
	s.nothingSince(when, records)
}

// Only root can call: the socket's mode says so, and the service refuses other
// users that reach the socket.
func TestOtherUsersAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	service := s.serve()
	path := strings.TrimPrefix(service.Endpoint, "unix://")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v, %v", info.Mode(), err)
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) { // make the path accessible
		testkit.Must(t, os.Chmod(dir, 0o755))
		if dir == os.TempDir() {
			break
		}
	}
	testkit.Must(t, os.Chmod(path, 0o666))
	out, err := s.machine.Run(t.Context(), "setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all",
		cleat, "fence", "add", "10.9.1.7", "--timeout", "5s", "--endpoint", service.Endpoint)
	if err == nil {
		t.Errorf("another user fences: %s", out)
	}
	testkit.EventuallyNil(t, "the log names user 65533", func() error {
		if said := service.Log(); !strings.Contains(said, "caller refused") || !strings.Contains(said, "65533") {
			return fmt.Errorf("the log is %s", said)
		}
		return nil
	})
	if err := s.listed(service); err != nil {
		t.Error(err)
	}
	if out := s.machine.MustRun(t, cleat, "fence", "list", "--endpoint", service.Endpoint); strings.Contains(out, "10.9") {
		t.Error(out)
	}
}

// A second service with the same table or state directory is refused.
func TestSecondServiceIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	service := s.serve("--standby")
	s.fence(service, []string{victimBlock})
	for _, c := range []struct {
		flags []string
		words string
	}{
		{nil, "with the same state directory"},
		{[]string{"--state-dir", filepath.Join(s.machine.Dir, "other")}, "it belongs to a server with another state directory"},
	} {
		v := testkit.Value(serve.Begin(s.machine, cleat, nil, append([]string{"--ports", "4420,3260,10809"}, c.flags...)...))(t)
		code, err := v.Wait(patience)
		if err != nil || code.ExitStatus() == 0 || !strings.Contains(v.Log(), c.words) {
			t.Errorf("%v: a second service ended with %v, %v and logged %s", c.flags, code, err, v.Log())
			_ = v.Kill()
		}
		_ = v.Close()
	}
	if err := s.listed(service, victimBlock); err != nil {
		t.Error(err)
	}
	if err := s.holds(); err != nil {
		t.Error(err)
	}
}
