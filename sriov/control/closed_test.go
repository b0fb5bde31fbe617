package control

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestRenewerClosesFunctions(t *testing.T) {
	socket := socketOf(t)
	d, _ := start(t, socket)
	k, _ := renewing(t, socket)
	k.Enable(gate.Claim{Generation: 1})
	untilServing(t, d, 1)
	closed := gate.Claim{Generation: 1, Closed: gate.Closed{"0000:3b:00.0": "the MTU is\n1500"}}
	k.Enable(closed)
	acknowledged := func() bool {
		s := k.Status()
		return s.State == StateHeld && s.Held.Equal(closed) && s.Plugin.Withdrawn
	}
	testkit.Eventually(t, "the function is withdrawn", acknowledged)
	testkit.Diff(t, "closed", gate.Closed{"0000:3b:00.0": "the MTU is 1500"}, k.Status().Plugin.Closed)
	if n := d.opened(); n != 1 {
		t.Errorf("the resource was opened %d times", n)
	}
	k.Enable(gate.Claim{Generation: 1})
	testkit.Eventually(t, "the function is offered again", func() bool { return k.Status().State == StateHeld && len(k.Status().Plugin.Closed) == 0 })
}

// extensions1 is a plugin that would offer the closed functions.
type extensions1 struct {
	proposal
	t *testing.T
	*controlv1.GetVersionResponse
}

func (p extensions1) EnableDevices(r *controlv1.EnableDevicesRequest, s grpc.ServerStreamingServer[controlv1.DevicePluginStatus]) error {
	if len(r.GetClosedFunctions()) > 0 {
		p.t.Errorf("a plugin that ignores closed functions is enabled with %v", r)
	}
	return p.proposal.EnableDevices(r, s)
}

func (p extensions1) GetVersion(ctx context.Context, r *controlv1.GetVersionRequest) (*controlv1.GetVersionResponse, error) {
	if p.GetVersionResponse == nil {
		return p.UnimplementedControlServiceServer.GetVersion(ctx, r)
	}
	return p.GetVersionResponse, nil
}

func TestRenewerDoesNotEnableAPluginThatWouldOfferClosedFunctions(t *testing.T) {
	for name, version := range map[string]*controlv1.GetVersionResponse{"of the proposal": nil, "with older extensions": {Name: "cleat", Extensions: 1}} {
		t.Run(name, func(t *testing.T) {
			socket := socketOf(t)
			server := grpc.NewServer()
			controlv1.RegisterControlServiceServer(server, extensions1{t: t, GetVersionResponse: version})
			l := testkit.Value(unixsock.Listen(t.Context(), unixsock.Address{Path: socket}))(t)
			go func() { _ = server.Serve(l) }()
			t.Cleanup(server.Stop)
			k, _ := renewing(t, socket)
			k.Enable(gate.Claim{Generation: 1, Closed: gate.Closed{"0000:3b:00.0": ""}})
			s := untilState(t, k, StateRefused)
			if s.Code != codes.Unimplemented || !strings.Contains(s.Reason, "cannot close single functions") {
				t.Errorf("%+v", s)
			}
			k.Enable(gate.Claim{Generation: 1})
			untilState(t, k, StateHeld)
		})
	}
}
