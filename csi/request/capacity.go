package request

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/volume"
)

// Capacity asks what is left for volumes of a kind at a place.
type Capacity struct {
	Query    volume.CapacityQuery
	Topology Topology // empty: wherever the plugin can
	// Unspecific is set when no capability says for what kind of volume. So an
	// orchestrator asks on behalf of its scheduler, with the parameters of a
	// class. Were wrong ones refused, it would take that for a lack of room, and
	// never ask for the volume whose refusal says what is wrong: so leave them out.
	Unspecific bool
}

// GetCapacity checks a GetCapacityRequest.
func GetCapacity(r *csi.GetCapacityRequest, offer Offer) (Capacity, error) {
	topology := r.GetAccessibleTopology().GetSegments()
	if err := firstError(
		checkMap("parameters", r.GetParameters()),
		CheckTopology("accessible_topology", topology),
	); err != nil {
		return Capacity{}, err
	}
	if len(topology) > 0 && !offer.Topology {
		return Capacity{}, invalidf("accessible_topology is set, but this plugin does not announce accessibility constraints")
	}
	c := Capacity{Topology: topology}
	var err error
	if len(r.GetVolumeCapabilities()) > 0 {
		all, err := readCapabilities(r.GetVolumeCapabilities())
		if err != nil {
			return Capacity{}, err
		}
		if c.Query.Content, c.Query.FSType, err = contentOf(all); err != nil {
			return Capacity{}, err
		}
	}
	c.Unspecific = len(r.GetVolumeCapabilities()) == 0
	c.Query.Parameters, c.Query.FSType, err = parseParameters(r.GetParameters(), c.Query.Content, c.Query.FSType)
	if err != nil && c.Unspecific {
		return c, nil
	}
	return c, err
}
