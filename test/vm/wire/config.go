package wire

// ConfigPath is where the agent finds its configuration in the guest: a file
// of the initramfs, since a kernel command line is short.
const ConfigPath = "/etc/agent.json"

// Config is what a guest is told before it boots.
type Config struct {
	Host  string `json:"host"`  // address of the host's listener, as the guest reaches it
	Token string `json:"token"` // proves to the host that the caller is this guest
	// Modules are paths of kernel modules in the order in which they load.
	Modules []string `json:"modules"`
	// MAC is the hardware address of the interface that leads to the host, and
	// Address its own address with prefix length.
	MAC     string `json:"mac"`
	Address string `json:"address"`
}
