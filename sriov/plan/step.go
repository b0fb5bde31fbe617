package plan

import "fmt"

type (
	// SetNumVFs creates virtual functions, or removes all (0). A PF with
	// virtual functions can only get 0.
	SetNumVFs struct {
		PF     string
		Number int
	}
	// SetESwitch changes the mode of a PF's embedded switch.
	SetESwitch struct{ PF, Mode string }
	// SetFlowSteering sets the flow steering mode of a PF. Its embedded switch must
	// be in legacy mode.
	SetFlowSteering struct{ PF, Mode string }
	// SetTCOffload makes the network device of a PF offload tc rules
	// (hw-tc-offload).
	SetTCOffload struct{ PF string }
	// CreateBridge creates an Open vSwitch bridge with the PF as its uplink.
	CreateBridge struct{ PF, Name, Config string } // Config: a nodestate.Bridge in JSON
	// DeleteBridge deletes a bridge that CreateBridge created for the PF.
	DeleteBridge struct{ PF, Name string }
	// SetMTU is for a PF or a VF.
	SetMTU struct {
		Address string
		MTU     int
	}
	// SetUp brings the network device of a function up.
	SetUp struct{ Address string }
	// SetMAC sets the administrative MAC address of a VF.
	SetMAC struct {
		Entry
		MAC string
	}
	// SetGUID sets the node GUID and the port GUID of an InfiniBand VF.
	SetGUID struct {
		Entry
		GUID string // 00:11:22:33:44:55:66:77
	}
	// SetTrust allows a VF to change its address and filters.
	SetTrust struct {
		Entry
		On bool
	}
	// SetSpoofCheck drops frames with a foreign source address.
	SetSpoofCheck struct {
		Entry
		On bool
	}
	// SetVLAN makes the card tag the packets of a VF; VLAN 0 ends it.
	SetVLAN struct {
		Entry
		VLAN, QoS int
		QinQ      bool // a service tag (802.1ad)
	}
	// SetRates limits the rates of a VF in Mbit/s; 0 is no limit.
	SetRates struct {
		Entry
		Min, Max int
	}
	// SetLinkState sets the link that a VF sees: LinkAuto, LinkUp or LinkDown.
	SetLinkState struct {
		Entry
		State int
	}
	// Bind first unbinds another driver. "" is the driver that the kernel
	// chooses.
	Bind struct{ Address, Driver string }
	// Unbind unbinds a function from its driver.
	Unbind struct{ Address string }
	// SetVDPA creates the vDPA device (virtio, vhost) of a function; "" removes
	// it.
	SetVDPA struct{ Address, Type string }
)

// Link states of a VF.
const (
	LinkAuto = iota // that of the PF
	LinkUp
	LinkDown
)

// Entry identifies a VF in its PF's table.
type Entry struct {
	PF      string
	VF      int
	Address string // of the VF
}

func (s SetNumVFs) Function() string       { return s.PF }
func (s SetESwitch) Function() string      { return s.PF }
func (s SetFlowSteering) Function() string { return s.PF }
func (s SetTCOffload) Function() string    { return s.PF }
func (s CreateBridge) Function() string    { return s.PF }
func (s DeleteBridge) Function() string    { return s.PF }
func (s SetMTU) Function() string          { return s.Address }
func (s SetUp) Function() string           { return s.Address }
func (e Entry) Function() string           { return e.Address }
func (s Bind) Function() string            { return s.Address }
func (s Unbind) Function() string          { return s.Address }
func (s SetVDPA) Function() string         { return s.Address }

func (s SetFlowSteering) String() string {
	return fmt.Sprintf("set the flow steering mode of %s to %s", s.PF, s.Mode)
}
func (s SetTCOffload) String() string { return "turn on hw-tc-offload of " + s.PF }
func (s CreateBridge) String() string {
	return fmt.Sprintf("create the Open vSwitch bridge %s with %s", s.Name, s.PF)
}
func (s DeleteBridge) String() string {
	return fmt.Sprintf("delete the Open vSwitch bridge %s of %s", s.Name, s.PF)
}
func (e Entry) String() string  { return fmt.Sprintf("%s (VF %d of %s)", e.Address, e.VF, e.PF) }
func (s SetMTU) String() string { return fmt.Sprintf("set the MTU of %s to %d", s.Address, s.MTU) }
func (s SetUp) String() string  { return "bring up " + s.Address }
func (s SetMAC) String() string {
	return fmt.Sprintf("set the administrative MAC address of %s to %s", s.Entry, s.MAC)
}
func (s SetGUID) String() string  { return fmt.Sprintf("set the GUIDs of %s to %s", s.Entry, s.GUID) }
func (s SetTrust) String() string { return fmt.Sprintf("turn trust %s for %s", onOff(s.On), s.Entry) }
func (s SetSpoofCheck) String() string {
	return fmt.Sprintf("turn spoof checking %s for %s", onOff(s.On), s.Entry)
}
func (s SetVLAN) String() string {
	if s.VLAN == 0 {
		return "remove the VLAN of " + s.Entry.String()
	}
	return fmt.Sprintf("set the VLAN of %s to %d", s.Entry, s.VLAN)
}

func (s SetRates) String() string {
	return fmt.Sprintf("set the rates of %s to %d and %d Mbit/s", s.Entry, s.Min, s.Max)
}

func (s SetLinkState) String() string {
	return fmt.Sprintf("set the link state of %s to %s", s.Entry, map[int]string{LinkAuto: "auto", LinkUp: "up", LinkDown: "down"}[s.State])
}
func (s Unbind) String() string { return "unbind " + s.Address + " from its driver" }

func (s SetNumVFs) String() string {
	if s.Number == 0 {
		return "remove the virtual functions of " + s.PF
	}
	return fmt.Sprintf("create %d virtual functions on %s", s.Number, s.PF)
}

func (s SetESwitch) String() string {
	return fmt.Sprintf("switch the embedded switch of %s to mode %s", s.PF, s.Mode)
}

func (s Bind) String() string {
	if s.Driver == "" {
		return "bind " + s.Address + " to its default driver"
	}
	return fmt.Sprintf("bind %s to %s", s.Address, s.Driver)
}

func (s SetVDPA) String() string {
	if s.Type == "" {
		return "remove the vDPA device of " + s.Address
	}
	return fmt.Sprintf("create a vDPA device (%s) on %s", s.Type, s.Address)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
