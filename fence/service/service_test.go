package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/spec/lib/go/fence"
	"github.com/csi-addons/spec/lib/go/identity"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	fencev1 "github.com/cleatproject/cleat/api/fence/v1"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// list is an Enforcer that records its requests.
type list struct {
	asks            []plan.Request
	err             error // of all but Ending and Unseen
	waiting, unseen error
}

func (l *list) Fence(_ context.Context, req plan.Request) error {
	l.asks = append(l.asks, req)
	return l.err
}

func (l *list) Unfence(_ context.Context, req plan.Request) error {
	l.asks = append(l.asks, req)
	return l.err
}

func (l *list) List(context.Context, *volume.FenceOwner) ([]netip.Prefix, error) {
	return []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, l.err
}

func (l *list) Ending(context.Context) ([]volume.Session, error) { return nil, l.waiting }
func (l *list) Unseen(context.Context) ([]string, error)         { return nil, l.unseen }

func (l *list) Coverage(_ context.Context, blocks []netip.Prefix, _ bool) ([]volume.Coverage, error) {
	return []volume.Coverage{{Enforcer: "host", Problems: []string{fmt.Sprint(blocks)}}}, l.err
}

func (l *list) RecordedClients(context.Context) ([]volume.RecordedClient, error) {
	return []volume.RecordedClient{{
		Client: volume.Client{Node: "n1", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("2001:db8::7")}},
		Former: []netip.Addr{netip.MustParseAddr("10.0.0.6")},
	}}, l.err
}

func (l *list) Recorded(_ context.Context, owner volume.FenceOwner) ([]netip.Prefix, error) {
	if owner.Digest != request.Owner(map[string]string{"clusterID": "a"}).Digest {
		return nil, l.err
	}
	return []netip.Prefix{netip.MustParsePrefix("10.0.0.7/32")}, l.err
}

func here(context.Context) (volume.Client, error) {
	return volume.Client{Node: "n1", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")}}, nil
}

func cidr(texts ...string) (all []*fence.CIDR) {
	for _, t := range texts {
		all = append(all, &fence.CIDR{Cidr: t})
	}
	return all
}

func TestCallsReachTheEnforcer(t *testing.T) {
	l := &list{}
	s := testkit.Value(New(Config{Name: "x", Version: "1", Offer: Offer{Fence: true, Clients: true}, Enforcer: l, Client: here}))(t)
	parameters := map[string]string{"clusterID": "a"}
	if _, err := s.FenceClusterNetwork(t.Context(), &fence.FenceClusterNetworkRequest{Parameters: parameters, Cidrs: cidr("10.0.0.7")}); err != nil {
		t.Error(err)
	}
	if _, err := s.UnfenceClusterNetwork(t.Context(), &fence.UnfenceClusterNetworkRequest{Parameters: parameters, Cidrs: cidr("10.0.0.7/32")}); err != nil {
		t.Error(err)
	}
	if len(l.asks) != 2 || l.asks[0].Owner.Digest != l.asks[1].Owner.Digest || l.asks[0].Blocks[0] != netip.MustParsePrefix("10.0.0.7/32") {
		t.Errorf("requests: %+v", l.asks)
	}
	answer, err := s.ListClusterFence(t.Context(), &fence.ListClusterFenceRequest{})
	if err != nil || len(answer.GetCidrs()) != 1 || answer.GetCidrs()[0].GetCidr() != "10.0.0.0/24" {
		t.Errorf("list: %v, %v", answer, err)
	}
	for _, c := range []struct {
		cidrs []string
		want  string
	}{{nil, "[]"}, {[]string{"10.0.0.7"}, "[10.0.0.7/32]"}} {
		coverage, err := s.GetCoverage(t.Context(), &fencev1.GetCoverageRequest{Cidrs: c.cidrs})
		if err != nil || len(coverage.GetEnforcers()) != 1 || coverage.GetEnforcers()[0].GetProblems()[0] != c.want {
			t.Errorf("coverage of %v: %v, %v", c.cidrs, coverage, err)
		}
	}
	for owner, want := range map[string]int{"a": 1, "b": 0} {
		fences, err := s.ListRecordedFences(t.Context(), &fencev1.ListRecordedFencesRequest{Parameters: map[string]string{"clusterID": owner}})
		if err != nil || len(fences.GetCidrs()) != want {
			t.Errorf("fences of %s: %v, %v", owner, fences, err)
		}
	}
	if _, err := s.ListRecordedFences(t.Context(), &fencev1.ListRecordedFencesRequest{}); !errors.Is(err, errs.Invalid) {
		t.Errorf("fences of all owners: %v", err)
	}
	recorded := testkit.Value(s.ListRecordedClients(t.Context(), &fencev1.ListRecordedClientsRequest{}))(t)
	testkit.Diff(t, "recorded clients", fmt.Sprint(testkit.Value(l.RecordedClients(t.Context()))(t)), fmt.Sprint(testkit.Value(request.RecordedClients(recorded))(t)))
	recorded.Clients[0].FormerAddresses[0] = "10.0.0"
	if _, err := request.RecordedClients(recorded); !errors.Is(err, errs.Invalid) {
		t.Errorf("an address that cannot be read: %v", err)
	}
	if _, err := s.GetCoverage(t.Context(), &fencev1.GetCoverageRequest{Cidrs: []string{"10.0.0.7/24"}}); !errors.Is(err, errs.Invalid) {
		t.Errorf("coverage of host bits: %v", err)
	}
	clients, err := s.GetFenceClients(t.Context(), &fence.GetFenceClientsRequest{})
	if err != nil || len(clients.GetClients()) != 1 || clients.GetClients()[0].GetId() != "n1" || clients.GetClients()[0].GetAddresses()[1].GetCidr() != "2001:db8::1/128" {
		t.Errorf("clients: %v, %v", clients, err)
	}
	if _, err := s.FenceClusterNetwork(t.Context(), &fence.FenceClusterNetworkRequest{Cidrs: cidr("10.0.0.7/24")}); !errors.Is(err, errs.Invalid) || len(l.asks) != 2 {
		t.Errorf("host bits: %v, %d requests", err, len(l.asks))
	}
}

// callAll makes each call with a valid request, and returns their errors.
func callAll(t *testing.T, s *Server) map[string]error {
	t.Helper()
	all, ctx := map[string]error{}, t.Context()
	_, all["FenceClusterNetwork"] = s.FenceClusterNetwork(ctx, &fence.FenceClusterNetworkRequest{Cidrs: cidr("10.0.0.7")})
	_, all["UnfenceClusterNetwork"] = s.UnfenceClusterNetwork(ctx, &fence.UnfenceClusterNetworkRequest{Cidrs: cidr("10.0.0.7")})
	_, all["ListClusterFence"] = s.ListClusterFence(ctx, &fence.ListClusterFenceRequest{})
	_, all["GetCoverage"] = s.GetCoverage(ctx, &fencev1.GetCoverageRequest{})
	_, all["ListRecordedClients"] = s.ListRecordedClients(ctx, &fencev1.ListRecordedClientsRequest{})
	_, all["ListRecordedFences"] = s.ListRecordedFences(ctx, &fencev1.ListRecordedFencesRequest{Parameters: map[string]string{"clusterID": "b"}})
	_, all["GetFenceClients"] = s.GetFenceClients(ctx, &fence.GetFenceClientsRequest{})
	return all
}

// What cannot be read is an error, not an empty list.
func TestErrorsReachTheCaller(t *testing.T) {
	failed := errs.Errorf(errs.Unavailable, "for a test")
	for name, c := range map[string]struct {
		enforcer *list
		client   error
		want     []string
	}{
		"all but waiting": {&list{err: failed}, failed, []string{
			"FenceClusterNetwork", "GetCoverage", "GetFenceClients", "ListClusterFence", "ListRecordedClients", "ListRecordedFences", "UnfenceClusterNetwork",
		}},
		"sessions that end": {&list{waiting: failed}, nil, []string{"ListClusterFence"}},
		"peers not seen":    {&list{unseen: failed}, nil, []string{"ListClusterFence"}},
		"none":              {&list{}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := testkit.Value(New(Config{
				Name: "x", Offer: Offer{Fence: true, Clients: true}, Enforcer: c.enforcer,
				Client: func(ctx context.Context) (volume.Client, error) {
					client, _ := here(ctx)
					return client, c.client
				},
			}))(t)
			var got []string
			for call, err := range callAll(t, s) {
				if errors.Is(err, failed) {
					got = append(got, call)
				} else if err != nil {
					t.Errorf("%s: %v", call, err)
				}
			}
			slices.Sort(got)
			testkit.Diff(t, "calls that failed", c.want, got)
		})
	}
}

func TestCallsNotOffered(t *testing.T) {
	s := testkit.Value(New(Config{Name: "x", Offer: Offer{Why: "say --more"}}))(t)
	for name, err := range callAll(t, s) {
		if errs.Code(err) != codes.Unimplemented || name != "GetFenceClients" && !strings.Contains(err.Error(), "--more") {
			t.Errorf("%s: %v", name, err)
		}
	}
	answer, err := s.GetCapabilities(t.Context(), &identity.GetCapabilitiesRequest{})
	if err != nil || len(answer.GetCapabilities()) != 0 {
		t.Errorf("capabilities: %v, %v", answer, err)
	}
	for name, c := range map[string]Config{
		"no name":     {},
		"no enforcer": {Name: "x", Offer: Offer{Fence: true}},
		"no client":   {Name: "x", Offer: Offer{Clients: true}},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestNodeWithoutAnAddress(t *testing.T) {
	s := testkit.Value(New(Config{Name: "x", Offer: Offer{Clients: true}, Client: func(context.Context) (volume.Client, error) {
		return volume.Client{Node: "n1"}, nil
	}}))(t)
	if _, err := s.GetFenceClients(t.Context(), &fence.GetFenceClientsRequest{}); errs.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--node-address") {
		t.Errorf("got %v", err)
	}
}

func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	key := write("key", "opensesame\n")
	check := SecretFiles(map[string]string{"userKey": key, "userID": write("id", "admin")})
	right := map[string]string{"userKey": "opensesame", "userID": "admin", "other": "x"}
	if err := check(right); err != nil {
		t.Errorf("the right ones: %v", err)
	}
	for name, secrets := range map[string]map[string]string{
		"none": nil, "one": {"userKey": "opensesame"}, "wrong": {"userKey": "opensesame ", "userID": "admin"}, "empty": {"userKey": "", "userID": ""},
	} {
		err := check(secrets)
		if errs.Code(err) != codes.Unauthenticated || strings.Contains(err.Error(), "opensesame") || !strings.Contains(err.Error(), "userKey") {
			t.Errorf("%s: %v", name, err)
		}
	}
	write("key", "renewed")
	if err := check(right); errs.Code(err) != codes.Unauthenticated {
		t.Errorf("a renewed secret: %v", err)
	}
	for name, broken := range map[string]func(){
		"empty": func() { write("key", "\n") },
		"large": func() { write("key", strings.Repeat("x", maxSecret+1)) },
		"gone":  func() { _ = os.Remove(key) },
	} {
		broken()
		if err := check(right); errs.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "userKey") {
			t.Errorf("%s file: %v", name, err)
		}
	}
	if SecretFiles(nil) != nil {
		t.Error("secrets are required without authentication")
	}
}

func TestEveryCallIsAuthenticated(t *testing.T) {
	l := &list{}
	denied := errs.Errorf(errs.Unauthenticated, "no")
	s := testkit.Value(New(Config{
		Name: "x", Offer: Offer{Fence: true, Clients: true}, Enforcer: l, Client: here,
		Authenticate: func(map[string]string) error { return denied },
	}))(t)
	for name, err := range callAll(t, s) {
		if !errors.Is(err, denied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(l.asks) != 0 {
		t.Errorf("requests after the refusal: %v", l.asks)
	}
}
