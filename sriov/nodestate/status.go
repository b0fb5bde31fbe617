package nodestate

// Status is the observed state and the progress of its change. Its JSON is the
// operator's, capitals included.
type Status struct {
	Interfaces    []FoundInterface `json:"interfaces,omitempty"`
	Bridges       Bridges          `json:"bridges,omitzero"`
	System        System           `json:"system,omitzero"`
	SyncStatus    string           `json:"syncStatus,omitempty"`
	LastSyncError string           `json:"lastSyncError,omitempty"`
}

// Values of SyncStatus.
const (
	InProgress = "InProgress"
	Succeeded  = "Succeeded"
	Failed     = "Failed"
)

// Values of a found interface. They differ from those of a spec.
const (
	FoundEthernet   = "ETH"
	FoundInfiniBand = "IB"
	LinkUp          = "up"
	LinkDown        = "down"
)

// FoundInterface is the observed state of a physical function.
type FoundInterface struct {
	Name              string    `json:"name,omitempty"`
	MAC               string    `json:"mac,omitempty"`
	Driver            string    `json:"driver,omitempty"`
	PCIAddress        string    `json:"pciAddress"`
	Vendor            string    `json:"vendor,omitempty"`
	DeviceID          string    `json:"deviceID,omitempty"`
	NetFilter         string    `json:"netFilter,omitempty"`
	MTU               int       `json:"mtu,omitempty"`
	NumVFs            int       `json:"numVfs,omitempty"`
	LinkSpeed         string    `json:"linkSpeed,omitempty"`
	LinkType          string    `json:"linkType,omitempty"`       // ETH, IB
	LinkAdminState    string    `json:"linkAdminState,omitempty"` // up, down
	ESwitchMode       string    `json:"eSwitchMode,omitempty"`
	ExternallyManaged bool      `json:"externallyManaged,omitempty"`
	TotalVFs          int       `json:"totalvfs,omitempty"`
	VFs               []FoundVF `json:"Vfs,omitempty"`
	AltNames          []string  `json:"altNames,omitempty"`
}

// FoundVF is the observed state of a virtual function.
type FoundVF struct {
	Name            string `json:"name,omitempty"`
	MAC             string `json:"mac,omitempty"`
	Assigned        string `json:"assigned,omitempty"`
	Driver          string `json:"driver,omitempty"`
	PCIAddress      string `json:"pciAddress"`
	Vendor          string `json:"vendor,omitempty"`
	DeviceID        string `json:"deviceID,omitempty"`
	VLAN            int    `json:"Vlan,omitempty"`
	MTU             int    `json:"mtu,omitempty"`
	Index           int    `json:"vfID"`
	VDPAType        string `json:"vdpaType,omitempty"`
	RepresentorName string `json:"representorName,omitempty"`
	GUID            string `json:"guid,omitempty"` // as sysfs writes it: 0011:2233:4455:6677
}
