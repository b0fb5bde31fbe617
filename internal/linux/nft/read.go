package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Generation increases with every change by any process in the network
// namespace: reads between two equal generations are consistent.
func (c *Conn) Generation(ctx context.Context) (uint32, error) {
	m, err := c.one(ctx, unix.NFT_MSG_GETGEN, unix.NFT_MSG_NEWGEN, "read the generation", func(*netlink.AttributeEncoder) {})
	if err != nil {
		return 0, err
	}
	var generation uint32
	err = decode(m, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_GEN_ID {
			generation = ad.Uint32()
		}
	})
	return generation, badAnswer("the generation", err)
}

// Table reads a table; unix.ENOENT if it does not exist.
func (c *Conn) Table(ctx context.Context, name string) (Table, error) {
	m, err := c.one(ctx, unix.NFT_MSG_GETTABLE, unix.NFT_MSG_NEWTABLE, "read table inet "+name, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_TABLE_NAME, name)
	})
	if err != nil {
		return Table{}, err
	}
	return parseTable(m)
}

func parseTable(data []byte) (Table, error) {
	var t Table
	err := decode(data, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_TABLE_NAME:
			t.Name = ad.String()
		case unix.NFTA_TABLE_FLAGS:
			t.Flags = ad.Uint32()
		case unix.NFTA_TABLE_USE:
			t.Use = ad.Uint32()
		case tableOwner:
			t.Owner = ad.Uint32()
		}
	})
	return t, badAnswer("a table", err)
}

// Chain reads a chain; unix.ENOENT if it does not exist.
func (c *Conn) Chain(ctx context.Context, table, name string) (Chain, error) {
	what := fmt.Sprintf("read chain %s of table inet %s", name, table)
	m, err := c.one(ctx, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN, what, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_CHAIN_TABLE, table)
		ae.String(unix.NFTA_CHAIN_NAME, name)
	})
	if err != nil {
		return Chain{}, err
	}
	return parseChain(m)
}

func parseChain(data []byte) (Chain, error) {
	var c Chain
	err := decode(data, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			c.Table = ad.String()
		case unix.NFTA_CHAIN_NAME:
			c.Name = ad.String()
		case unix.NFTA_CHAIN_TYPE:
			c.Type = ad.String()
		case unix.NFTA_CHAIN_POLICY:
			c.Policy = ad.Uint32()
		case chainFlags:
			c.Flags = ad.Uint32()
		case unix.NFTA_CHAIN_HOOK:
			within(ad, func(ad *netlink.AttributeDecoder) {
				switch ad.Type() {
				case unix.NFTA_HOOK_HOOKNUM:
					c.Hook = ad.Uint32()
				case unix.NFTA_HOOK_PRIORITY:
					c.Priority = ad.Int32()
				}
			})
		}
	})
	return c, badAnswer("a chain", err)
}

// Set reads a set without its elements; unix.ENOENT if it does not exist.
func (c *Conn) Set(ctx context.Context, table, name string) (Set, error) {
	what := fmt.Sprintf("read set %s of table inet %s", name, table)
	m, err := c.one(ctx, unix.NFT_MSG_GETSET, unix.NFT_MSG_NEWSET, what, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_TABLE, table)
		ae.String(unix.NFTA_SET_NAME, name)
	})
	if err != nil {
		return Set{}, err
	}
	return parseSet(m)
}

func parseSet(data []byte) (Set, error) {
	var s Set
	err := decode(data, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_SET_TABLE:
			s.Table = ad.String()
		case unix.NFTA_SET_NAME:
			s.Name = ad.String()
		case unix.NFTA_SET_FLAGS:
			s.Flags = ad.Uint32()
		case unix.NFTA_SET_KEY_TYPE:
			s.KeyType = ad.Uint32()
		case unix.NFTA_SET_KEY_LEN:
			s.KeyLen = ad.Uint32()
		case unix.NFTA_SET_TIMEOUT:
			s.Timeout = ad.Uint64()
		}
	})
	return s, badAnswer("a set", err)
}

// Rules reads the rules of a table, in order within each chain.
func (c *Conn) Rules(ctx context.Context, table string) ([]Rule, error) {
	var rules []Rule
	err := c.dump(ctx, unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE, "read the rules of table inet "+table, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_RULE_TABLE, table)
	}, func(reset bool, data []byte) error {
		if reset {
			rules = nil
			return nil
		}
		r, err := parseRule(data)
		// Kernels that ignore the filter return all rules.
		if err == nil && r.Table == table {
			rules = append(rules, r)
		}
		return err
	})
	return rules, err
}

func parseRule(data []byte) (Rule, error) {
	var r Rule
	err := decode(data, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_RULE_TABLE:
			r.Table = ad.String()
		case unix.NFTA_RULE_CHAIN:
			r.Chain = ad.String()
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Do(func(list []byte) error {
				return eachBytes(list, func(data []byte) error {
					e, err := parseExpression(data)
					r.Expressions = append(r.Expressions, e)
					return err
				})
			})
		}
	})
	return r, badAnswer("a rule", err)
}

// Elements reads the elements of a set, unordered; unix.ENOENT if it does not
// exist.
func (c *Conn) Elements(ctx context.Context, table, set string) ([]Element, error) {
	var elements []Element
	what := fmt.Sprintf("read the elements of set %s of table inet %s", set, table)
	err := c.dump(ctx, unix.NFT_MSG_GETSETELEM, unix.NFT_MSG_NEWSETELEM, what, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	}, func(reset bool, data []byte) error {
		if reset {
			elements = nil
			return nil
		}
		var err error
		elements, err = parseElements(elements, data)
		return err
	})
	return elements, err
}

func parseElements(elements []Element, data []byte) ([]Element, error) {
	err := decode(data, func(ad *netlink.AttributeDecoder) {
		if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return
		}
		ad.Do(func(list []byte) error {
			return eachBytes(list, func(data []byte) error {
				e, err := parseElement(data)
				elements = append(elements, e)
				return err
			})
		})
	})
	return elements, badAnswer("elements", err)
}

func parseElement(data []byte) (Element, error) {
	var e Element
	err := decode(data, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			within(ad, func(ad *netlink.AttributeDecoder) {
				if ad.Type() == unix.NFTA_DATA_VALUE {
					e.Key = ad.Bytes()
				}
			})
		case unix.NFTA_SET_ELEM_FLAGS:
			flags := ad.Uint32()
			e.End = flags&unix.NFT_SET_ELEM_INTERVAL_END != 0
			if other := flags &^ unix.NFT_SET_ELEM_INTERVAL_END; other != 0 {
				e.Odd = fmt.Sprintf("flags %#x", other)
			}
		case unix.NFTA_SET_ELEM_USERDATA, unix.NFTA_SET_ELEM_PAD: // comments
		default:
			e.Odd = fmt.Sprintf("attribute %d", ad.Type())
		}
	})
	return e, err
}

func eachBytes(list []byte, take func([]byte) error) error {
	var failed error
	err := decode(list, func(ad *netlink.AttributeDecoder) {
		if failed == nil {
			failed = take(ad.Bytes())
		}
	})
	return errors.Join(err, failed)
}

func badAnswer(what string, err error) error {
	if err != nil {
		return fmt.Errorf("nf_tables: invalid answer from the kernel for %s: %w", what, err)
	}
	return nil
}

func (c *Conn) one(ctx context.Context, ask, want uint16, what string, fill func(*netlink.AttributeEncoder)) ([]byte, error) {
	var found []byte
	err := c.request(ctx, ask, want, netlink.Acknowledge, what, fill, func(data []byte) error {
		found = data
		return nil
	})
	if err == nil && found == nil {
		err = fmt.Errorf("nf_tables: %s: the kernel returned no object", what)
	}
	return found, err
}

// dump repeats if the list changed meanwhile, with a reset before each attempt.
func (c *Conn) dump(ctx context.Context, ask, want uint16, what string, fill func(*netlink.AttributeEncoder), take func(reset bool, data []byte) error) error {
	for {
		if err := take(true, nil); err != nil {
			return err
		}
		err := c.request(ctx, ask, want, netlink.Dump, what, fill, func(data []byte) error { return take(false, data) })
		if !errors.Is(err, errInterrupted) {
			return err
		}
	}
}

func (c *Conn) request(ctx context.Context, kind, want uint16, flags netlink.HeaderFlags, what string, fill func(*netlink.AttributeEncoder), take func([]byte) error) error {
	data, err := encode(fill)
	if err != nil {
		return fmt.Errorf("nf_tables: %s: %w", what, err)
	}
	end, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	request := []netlink.Message{message(kind, flags, data)}
	if err := c.send(ctx, request); err != nil {
		return fmt.Errorf("nf_tables: %s: %w", what, err)
	}
	r := reply{sequence: request[0].Header.Sequence, want: want, what: what, take: take}
	for !r.over {
		messages, err := c.receive(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		for _, m := range messages {
			if err := r.handle(m); err != nil {
				return err
			}
		}
	}
	if r.interrupted {
		return errInterrupted
	}
	return nil
}

type reply struct {
	sequence          uint32
	want              uint16
	what              string
	take              func([]byte) error
	over, interrupted bool
}

func (r *reply) handle(m netlink.Message) error {
	if m.Header.Sequence != r.sequence || r.over {
		return nil // answers an abandoned request
	}
	r.interrupted = r.interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
	switch m.Header.Type {
	case netlink.Error, netlink.Done:
		r.over = true
		if m.Header.Type == netlink.Done && len(m.Data) < 4 {
			return nil
		}
		a, err := parseAnswer(m)
		if err != nil {
			return err
		}
		if a.errno == unix.EINTR || a.errno == unix.EAGAIN {
			r.interrupted = true
			return nil
		}
		if a.errno != 0 {
			return &Error{What: r.what, Errno: a.errno, Message: a.message}
		}
	case netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | r.want):
		if len(m.Data) < 4 {
			return fmt.Errorf("nf_tables: %s: answer of %d bytes is too short", r.what, len(m.Data))
		}
		return r.take(m.Data[4:])
	}
	return nil
}

func subsystem(kind netlink.HeaderType) (system, message uint16) {
	b := binary.BigEndian.AppendUint16(nil, uint16(kind))
	return uint16(b[0]), uint16(b[1])
}
