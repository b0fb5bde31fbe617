package inventory

import (
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

// anyPF is the PF in the port names of older kernels, which have a VF's index alone.
const anyPF = -1

// port is a PF as its embedded switch knows it.
type port struct {
	switchID string
	pf       int
}

// representation is a virtual function as the switch knows it.
type representation struct {
	port
	vf int
}

// isRepresentor tells a port of an embedded switch that stands for another
// function. The switch's uplink is p0, a representor pf0vf3, pf0sf88, c1pf0 or, of
// older kernels, 3.
func isRepresentor(l netlinks.Link) bool {
	if l.SwitchID == "" || l.PortName == "" {
		return false
	}
	first := l.PortName[0]
	return strings.HasPrefix(l.PortName, "pf") || first == 'c' || first >= '0' && first <= '9'
}

// represents says which virtual function of this machine a link stands
// for. Those with a c are of another machine: this one is its DPU.
func represents(l netlinks.Link) (representation, bool) {
	if !isRepresentor(l) {
		return representation{}, false
	}
	of := port{l.SwitchID, anyPF}
	index := l.PortName
	if rest, ok := strings.CutPrefix(index, "pf"); ok {
		pf, vf, ok := strings.Cut(rest, "vf")
		n, err := strconv.ParseUint(pf, 10, 16)
		if !ok || err != nil {
			return representation{}, false
		}
		of.pf, index = int(n), vf
	}
	vf, err := strconv.ParseUint(index, 10, 16)
	return representation{of, int(vf)}, err == nil
}

// uplinkPort is a PF's own port: p1 is PF 1. Where the port has another name it
// has the number of the PCI function, as drivers count.
func uplinkPort(l netlinks.Link, address string) port {
	if n, err := strconv.ParseUint(strings.TrimPrefix(l.PortName, "p"), 10, 16); err == nil {
		return port{l.SwitchID, int(n)}
	}
	return port{l.SwitchID, int(address[len(address)-1] - '0')}
}
