package wire

// ConfigPath is the agent's configuration file, in the initramfs because kernel
// command lines are short.
const ConfigPath = "/etc/agent.json"

// Config is the agent's configuration.
type Config struct {
	Host  string `json:"host"`  // address of the host's listener, as the guest reaches it
	Token string `json:"token"` // authenticates the guest to the host
	// Modules are paths of kernel modules in load order.
	Modules []string `json:"modules"`
	// MAC is the hardware address of the interface to the host, Address its IP
	// address with prefix length.
	MAC     string `json:"mac"`
	Address string `json:"address"`
}
