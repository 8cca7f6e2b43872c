package bus

import (
	"errors"
	"reflect"

	"sandkeep/internal/snapshot"
)

func fillClaim(s *shape, root map[string]member, targets []reflect.Value) error {
	if len(root) > 1 {
		return snapshot.Errorf(snapshot.BadRequest, `"$object" stands for the whole request; send it alone`)
	}
	f := s.byName["$object"]
	return f.fill(root[f.name], targets[f.target], place{})
}

// fillAll sets the identifiers, lets the request compare them, and sets the rest.
func fillAll(s *shape, root map[string]member, targets []reflect.Value) error {
	if err := fill(s, root, targets, place{}, true); err != nil {
		return err
	}
	checks, ok := targets[0].Addr().Interface().(interface{ CheckIDs() error })
	if ok && s.hasObjects(root) {
		if err := checks.CheckIDs(); err != nil {
			return err
		}
	}
	return fill(s, root, targets, place{}, false)
}

// hasObjects tells whether every object that must be there is. Otherwise
// identifiers are missing with it, and there is nothing to compare.
func (s *shape) hasObjects(root map[string]member) bool {
	for _, f := range s.fields {
		if f.object != nil && !f.optional && root[f.name].object == nil {
			return false
		}
	}
	return true
}

// fill sets the identifiers, or everything else, of an object and of those in it.
func fill(s *shape, object map[string]member, targets []reflect.Value, at place, ids bool) error {
	for _, f := range s.fields {
		if err := f.fillPass(object[f.name], targets[f.target], at, ids); err != nil {
			return err
		}
	}
	return nil
}

// fillPass does what is to be done for one member in the pass over identifiers
// or in the one over everything else.
func (f *field) fillPass(m member, target reflect.Value, at place, ids bool) error {
	switch {
	case m.object != nil:
		return fill(f.object, m.object, []reflect.Value{f.dest(target)}, at.in(f), ids)
	case f.item != nil && m.raw.Kind() == '[':
		return f.fillItems(m.raw, f.dest(target), at, ids)
	case f.isID == ids:
		return f.fill(m, target, at)
	}
	return nil
}

// dest is where the value goes; a pointer gets something to point to.
func (f *field) dest(target reflect.Value) reflect.Value {
	v := target.FieldByIndex(f.index)
	if v.Kind() != reflect.Pointer {
		return v
	}
	if v.IsNil() {
		v.Set(reflect.New(v.Type().Elem()))
	}
	return v.Elem()
}

// fill sets one member that is neither a nested object nor an array of objects.
func (f *field) fill(m member, target reflect.Value, at place) error {
	if m.isNull() && (f.optional || f.nullable() && m.raw != nil) {
		return nil
	}
	var err error
	if m.raw == nil {
		err = errors.New("is missing")
	} else {
		err = f.set(f.dest(target), m.raw)
	}
	if err == nil && f.isID {
		return snapshot.ValidateID(at.of(f.name), f.dest(target).String())
	}
	if _, ok := errors.AsType[*snapshot.Error](err); ok {
		return err
	}
	if err != nil {
		code := f.code
		if f.isID {
			code = snapshot.InvalidID
		}
		return snapshot.Errorf(code, "%s %s; it must be %s", at.of(f.name), err, f.wants())
	}
	return nil
}
