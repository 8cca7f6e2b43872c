package bus

import (
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json/jsontext"
)

// place is where an object stands in the request: it is spelled out for errors
// only, as there may be very many.
type place struct {
	prefix string
	number int // of the item in the array prefix, from 1; 0 if it is no item
}

// of is the full name of a member; that of an item itself for "".
func (p place) of(name string) string {
	switch {
	case p.number == 0:
		return p.prefix + name
	case name == "":
		return fmt.Sprintf("%s[%d]", p.prefix, p.number-1)
	}
	return fmt.Sprintf("%s[%d].%s", p.prefix, p.number-1, name)
}

// in is the place of what is inside the member f.
func (p place) in(f *field) place {
	if f.name == "" { // an item: its members stand where it does
		return p
	}
	return place{prefix: p.of(f.name) + "."}
}

// items reads the array of objects that comes next, hands on each item with
// its place, and returns the array's text. The items are not kept, as there may
// be very many: each pass reads them again.
func (p *parser) items(f *field, at place, fn func(item member, at place) error) (jsontext.Value, error) {
	if _, err := p.dec.ReadToken(); err != nil {
		return nil, syntaxFault(err)
	}
	start := p.dec.InputOffset() - 1
	for here := (place{at.of(f.name), 1}); p.dec.PeekKind() != ']'; here.number++ {
		item, err := p.member(f.item, here)
		if err == nil {
			err = fn(item, here)
		}
		if err != nil {
			return nil, err
		}
	}
	_, err := p.dec.ReadToken()
	end := p.dec.InputOffset()
	return p.data[start:end:end], syntaxFault(err)
}

// fillItems checks the identifiers of all items, or sets the items whole. It
// stops at the first that is bad, so that many of them take no memory.
func (f *field) fillItems(raw jsontext.Value, list reflect.Value, at place, ids bool) error {
	if ids && !f.item.hasIDs() {
		return nil
	}
	p := parser{data: raw, dec: newDecoder(raw)}
	scratch := reflect.New(f.item.typ).Elem()
	if !ids {
		list.Set(reflect.MakeSlice(list.Type(), 0, 0))
	}
	_, err := p.items(f, at, func(item member, here place) error {
		scratch.SetZero()
		if err := f.item.fillPass(item, scratch, here, true); err != nil || ids {
			return err
		}
		if err := f.item.fillPass(item, scratch, here, false); err != nil {
			return err
		}
		list.Grow(1)
		list.SetLen(list.Len() + 1)
		list.Index(list.Len() - 1).Set(scratch)
		return nil
	})
	return err
}
