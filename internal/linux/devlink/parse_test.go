package devlink

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type encoder = func(*netlink.AttributeEncoder)

func encode(t testing.TB, parts ...encoder) []byte {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	for _, p := range parts {
		p(ae)
	}
	return testkit.Value(ae.Encode())(t)
}

func nest(kind uint16, parts ...encoder) encoder {
	return func(ae *netlink.AttributeEncoder) {
		ae.Nested(kind, func(inner *netlink.AttributeEncoder) error {
			for _, p := range parts {
				p(inner)
			}
			return nil
		})
	}
}

func text(kind uint16, s string) encoder {
	return func(ae *netlink.AttributeEncoder) { ae.String(kind, s) }
}

func u8(kind uint16, v uint8) encoder {
	return func(ae *netlink.AttributeEncoder) { ae.Uint8(kind, v) }
}

func flag(kind uint16) encoder { return func(ae *netlink.AttributeEncoder) { ae.Flag(kind, true) } }

func handle(h Handle) encoder {
	return func(ae *netlink.AttributeEncoder) { text(1, h.Bus)(ae); text(2, h.Name)(ae) }
}

// The numbers are those of linux/devlink.h: fixed 100, running 101, stored 102.
func version(kind uint16, name, value string) encoder {
	return nest(kind, text(103, name), text(104, value))
}

func parameter(name string, kind uint8, values ...encoder) encoder {
	return nest(80, text(81, name), flag(82), u8(83, kind), nest(84, values...))
}

// mode: 0 runtime, 1 driverinit, 2 permanent
func value(mode uint8, data ...encoder) encoder {
	return nest(85, append([]encoder{u8(87, mode)}, data...)...)
}

var (
	yes = flag(86)
	pf  = Handle{"pci", "0000:3b:00.0"}
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		parse func(*netlink.AttributeDecoder) (Handle, Device, error)
		parts []encoder
		want  Device
	}{
		"as ice says it": {parseInfo, []encoder{
			text(98, "ice"), text(99, "00-01"), version(100, "board.id", "K91258-000"),
			version(101, "fw.mgmt", "7.3.4"), version(101, "fw.app.name", "ICE COMMS Package"), version(101, "fw.app", "1.3.45"),
			version(102, "fw.mgmt", "7.3.5"),
		}, Device{Profile: "ICE COMMS Package"}},
		"only stored":          {parseInfo, []encoder{version(102, "fw.app.name", "later")}, Device{}},
		"only fixed":           {parseInfo, []encoder{version(100, "fw.app.name", "never")}, Device{}},
		"no name":              {parseInfo, []encoder{nest(101, text(104, "fw.app.name"))}, Device{}},
		"no versions":          {parseInfo, nil, Device{}},
		"RDMA is on":           {parseParameter, []encoder{parameter("enable_rdma", 6, value(1, yes))}, Device{RDMA: true}},
		"RDMA is off":          {parseParameter, []encoder{parameter("enable_rdma", 6, value(1))}, Device{}},
		"off, on after a boot": {parseParameter, []encoder{parameter("enable_rdma", 6, value(1), value(2, yes))}, Device{}},
		"on, off after a boot": {parseParameter, []encoder{parameter("enable_rdma", 6, value(1, yes), value(2))}, Device{RDMA: true}},
		"another parameter":    {parseParameter, []encoder{parameter("enable_roce", 6, value(1, yes))}, Device{}},
		"a number":             {parseParameter, []encoder{parameter("enable_rdma", 1, value(1, u8(86, 1)))}, Device{}},
		"no values":            {parseParameter, []encoder{parameter("enable_rdma", 6)}, Device{}},
		"an attribute of later": {parseParameter, []encoder{parameter("enable_rdma", 6, value(1, yes, flag(190))), u8(200, 1)},
			Device{RDMA: true}},
	} {
		t.Run(name, func(t *testing.T) {
			h, d, err := c.parse(decoder(t, append([]encoder{handle(pf)}, c.parts...)...))
			if diff := cmp.Diff(c.want, d); diff != "" || err != nil || h != pf {
				t.Error(h, diff, err)
			}
		})
	}
}

func decoder(t testing.TB, parts ...encoder) *netlink.AttributeDecoder {
	t.Helper()
	return testkit.Value(netlink.NewAttributeDecoder(encode(t, parts...)))(t)
}

func TestParseBad(t *testing.T) {
	for name, parts := range map[string][]encoder{
		"nothing": nil, "no bus": {text(2, pf.Name)}, "no name": {text(1, "pci")},
	} {
		if _, _, err := parseInfo(decoder(t, parts...)); !errors.Is(err, errNameless) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := func(kind uint16) encoder {
		return func(ae *netlink.AttributeEncoder) { ae.Bytes(kind, []byte{9, 0, 1, 0}) }
	}
	if _, _, err := parseInfo(decoder(t, handle(pf), broken(101))); err == nil {
		t.Error("no error for a nested attribute that is truncated")
	}
	for _, part := range []encoder{broken(80), nest(80, broken(84)), nest(80, nest(84, broken(85)))} {
		if _, _, err := parseParameter(decoder(t, handle(pf), part)); err == nil {
			t.Error("no error for a nested attribute that is truncated")
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(encode(f, handle(pf), version(unix.DEVLINK_ATTR_INFO_VERSION_RUNNING, "fw.app.name", "ICE OS Default Package")))
	f.Add(encode(f, handle(pf), parameter("enable_rdma", 6, value(1, yes), value(2))))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, q := range deviceRequests() {
			ad, err := netlink.NewAttributeDecoder(data)
			if err != nil {
				return
			}
			h, d, err := q.parse(ad) // must not panic
			if err != nil && h != (Handle{}) {
				t.Errorf("%v, and yet a device: %+v", err, h)
			}
			if len(h.Bus)+len(h.Name)+len(d.Profile) > len(data) {
				t.Errorf("%d bytes became %+v %+v", len(data), h, d)
			}
		}
	})
}

func TestParseMessages(t *testing.T) {
	if answers, err := parse([]netlink.Message{{Data: []byte{1, 1, 0}}}); err == nil {
		t.Errorf("without a header: %v", answers)
	}
	answer := []netlink.Message{{Data: []byte{1, 1, 0, 0}}, {Header: netlink.Header{Type: netlink.Done}}}
	if answers, err := parse(answer); err != nil || len(answers) != 1 {
		t.Errorf("%v, %v", answers, err)
	}
}

func TestModeName(t *testing.T) {
	for mode, want := range map[uint16]string{0: "legacy", 1: "switchdev", 2: ""} {
		if got := modeName(mode); got != want {
			t.Errorf("mode %d is %q, want %q", mode, got, want)
		}
	}
}

func TestParseText(t *testing.T) {
	for want, parts := range map[string][]encoder{
		"smfs": {parameter("flow_steering_mode", 5, value(0, text(86, "smfs")), value(2, text(86, "dmfs")))},
		"":     {parameter("flow_steering_mode", 6, value(0, yes))},
	} {
		if got, err := parseText(decoder(t, append([]encoder{handle(pf)}, parts...)...)); got != want || err != nil {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if _, err := parseText(decoder(t, parameter("x", 5))); !errors.Is(err, errNameless) {
		t.Errorf("%v", err)
	}
	if got, err := TextParameter(t.Context(), Handle{"pci", "ffff:ff:1f.7"}, "flow_steering_mode"); got != "" || err != nil {
		t.Errorf("no device: %q, %v", got, err)
	}
}
