package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/internal/ovsdb"
	"github.com/cleatproject/cleat/sriov/plan"
)

// External ids of the bridges that createBridge creates.
const (
	idPF     = "cleat-sriov-pf"
	idConfig = "cleat-sriov-config"
)

// bridge has the operator's names of what a nodestate.Bridge can set.
type bridge struct {
	Name   string `json:"name"`
	Bridge struct {
		DatapathType string            `json:"datapathType"`
		FailMode     string            `json:"failMode"`
		ExternalIDs  map[string]string `json:"externalIDs"`
		OtherConfig  map[string]string `json:"otherConfig"`
	} `json:"bridge"`
	Uplinks []struct {
		PCIAddress string `json:"pciAddress"`
		Name       string `json:"name"`
		Interface  struct {
			Type        string            `json:"type"`
			Options     map[string]string `json:"options"`
			ExternalIDs map[string]string `json:"externalIDs"`
			OtherConfig map[string]string `json:"otherConfig"`
			MTURequest  int               `json:"mtuRequest"`
		} `json:"interface"`
	} `json:"uplinks"`
}

// createBridge also waits until the switch has opened the PF's network device.
func (h *Host) createBridge(ctx context.Context, c *call, s plan.CreateBridge) error {
	var b bridge
	decoder := json.NewDecoder(strings.NewReader(s.Config))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&b); err != nil || len(b.Uplinks) != 1 {
		return errors.Join(errors.New("want the configuration of a bridge with one uplink, with the operator's fields"), err)
	}
	netdev, err := h.netdev(s.PF)
	if err != nil {
		return err
	}
	c.setCurrent("read the Open vSwitch bridge %s", s.Name)
	all, err := ovsdb.Bridges(ctx, h.config.OVS)
	if err != nil {
		return err
	}
	switch has, exists := all[s.Name]; {
	case !exists:
		ids := maps.Clone(b.Bridge.ExternalIDs)
		if ids == nil {
			ids = map[string]string{}
		}
		ids[idPF], ids[idConfig] = s.PF, s.Config
		i := b.Uplinks[0].Interface
		c.setCurrent("create the Open vSwitch bridge %s", s.Name)
		if err := ovsdb.Create(ctx, h.config.OVS, ovsdb.Config{
			Name: s.Name, DatapathType: b.Bridge.DatapathType, FailMode: b.Bridge.FailMode, ExternalIDs: ids, OtherConfig: b.Bridge.OtherConfig,
			Uplink: ovsdb.Uplink{Name: netdev, Type: i.Type, Options: i.Options, ExternalIDs: i.ExternalIDs, OtherConfig: i.OtherConfig, MTURequest: i.MTURequest},
		}); err != nil {
			return err
		}
	case has.ExternalIDs[idPF] != s.PF || has.ExternalIDs[idConfig] != s.Config:
		return fmt.Errorf("the Open vSwitch bridge %s exists, and this daemon did not create it so: it is not changed", s.Name)
	}
	return retry.For(ctx, h.bounds.effect, func() (bool, error) {
		all, err := ovsdb.Bridges(ctx, h.config.OVS)
		if err != nil {
			return false, err
		}
		wrong, isMember := all[s.Name].Interfaces[netdev]
		if !isMember {
			wrong = "it is not in the bridge"
		}
		if wrong != "" {
			err = fmt.Errorf("%s in the Open vSwitch bridge %s: %s", netdev, s.Name, wrong)
		}
		return wrong != "", err
	})
}
